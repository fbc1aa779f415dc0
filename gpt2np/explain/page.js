"use strict";
// Interaction: the page shows everything without this script.
// Text is always set as textContent, so no prompt or vocabulary can become markup.

(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const kinds = { float32: Float32Array, float64: Float64Array, int32: Int32Array };
  const decoded = new Map();
  const minus = (shown) => shown.replace(/-/g, "\u2212");
  const find = (selector, within = document) => within.querySelector(selector);
  const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

  /** Decode an embedded array: flat data and shape. */
  function array(name) {
    if (!decoded.has(name)) {
      const { dtype, shape, base64 } = page.arrays[name];
      const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
      decoded.set(name, { shape, data: new kinds[dtype](bytes.buffer) });
    }
    return decoded.get(name);
  }

  /** Shortest decimal text that identifies a float32. */
  function shortestDecimal(value) {
    for (let n = 6; n < 10; n++) {
      const shown = value.toPrecision(n);
      if (Math.fround(Number(shown)) === value) return minus(String(Number(shown)));
    }
    return minus(String(value));
  }

  const formatNumber = (value) => minus(
    value === 0 ? "0" : Math.abs(value) < 1e4 ? value.toPrecision(4) : Math.round(value).toLocaleString("en"),
  );
  const formatProbability = (p) => minus(p === 0 ? "0" : p >= 0.0005 ? p.toFixed(4) : p.toExponential(1));

  function element(name, content = "", className = "") {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (typeof content === "string") made.textContent = content;
    else made.append(...content);
    return made;
  }

  const tokenElement = (shown) => element("bdi", shown, "token");
  const numberedToken = (at) => [`${at} `, tokenElement(page.tokens[at])];

  // Strips: pictures of arrays whose numbers can be inspected.

  function getStripArray(name) {
    if (name === "embed") {
      const [wte, wpe] = [array("wte"), array("wpe")];
      return { shape: wte.shape, data: wte.data.map((value, at) => value + wpe.data[at]) };
    }
    const { shape, data } = array(name);
    if (shape.length < 3) return { shape, data };
    const size = shape[1] * shape[2];
    return { shape: shape.slice(1), data: data.subarray(chosen.head * size, (chosen.head + 1) * size) };
  }

  function showStripNumber(image, row, column) {
    const { shape, data } = getStripArray(image.dataset.strip);
    const value = data[row * shape[1] + column];
    const where = image.dataset.rows === "row" ? [] : ["token ", ...numberedToken(row), ", "];
    const out = find(".readout", image.parentElement);
    out.replaceChildren(...where, `number ${column}: ${shortestDecimal(value)}`);
    out.dataset.value = String(value);
  }

  const readers = new Map();

  for (const image of findAll("[data-strip]")) {
    const place = { row: 0, column: 0 };
    const read = () => showStripNumber(image, place.row, place.column);
    readers.set(image, read);
    const point = (event) => {
      const box = image.getBoundingClientRect();
      const [rows, columns] = getStripArray(image.dataset.strip).shape;
      const within = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
      place.row = within((event.clientY - box.top) / box.height, rows);
      place.column = within((event.clientX - box.left) / box.width, columns);
      read();
    };
    image.addEventListener("pointermove", point);
    image.addEventListener("pointerdown", point);
    image.addEventListener("focus", read);
    image.addEventListener("keydown", (event) => {
      const [rows, columns] = getStripArray(image.dataset.strip).shape;
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      place.row = Math.min(rows - 1, Math.max(0, place.row + step[0]));
      place.column = Math.min(columns - 1, Math.max(0, place.column + step[1]));
      read();
    });
  }

  /** 99.5 % quantile of the absolute values, interpolated as by NumPy. */
  function colorLimit(data) {
    const sorted = Float32Array.from(data, Math.abs).sort();
    const place = 0.995 * (sorted.length - 1);
    const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
    return low + (high - low) * (place % 1) || 1;
  }

  /** Draw the same picture as gpt2np/explain/figures.py: opacity shows size, color shows sign. */
  function draw(image, { shape, data }, limit) {
    const canvas = document.createElement("canvas");
    [canvas.height, canvas.width] = shape;
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(canvas.width, canvas.height);
    data.forEach((value, at) => {
      const level = Math.round(127 * Math.min(1, Math.abs(value) / limit));
      const opacity = Math.round((255 * level) / 127);
      pixels.data.set([...(value < 0 ? [214, 103, 11] : [31, 104, 199]), opacity], 4 * at);
    });
    context.putImageData(pixels, 0, 0);
    image.src = canvas.toDataURL();
  }

  /** Redraw a strip for the selected head: picture, description, caption. */
  function redraw(image) {
    const content = getStripArray(image.dataset.strip);
    const limit = colorLimit(content.data);
    draw(image, content, limit);
    const named = (words) => words.replace(/head \d+/, `head ${chosen.head}`);
    image.alt = named(image.alt);
    const caption = find("figcaption", image.parentElement);
    caption.firstChild.textContent = named(caption.firstChild.textContent);
    find(".limit", caption).textContent = formatNumber(limit);
    if (find(".readout", image.parentElement).dataset.value) readers.get(image)();
  }

  // One score, term by term, for the selected head, query and key.

  const chosen = { ...page.focus };

  function getRow(name, head, at) {
    const { shape, data } = array(name);
    const start = (head * shape[1] + at) * shape[2];
    return data.subarray(start, start + shape[2]);
  }

  /** Terms and running sums in float32, rounded like NumPy's. */
  function scoreTerms(query, key) {
    let sum = 0;
    return Array.from(query, (value, d) => {
      const term = Math.fround(value * key[d]);
      sum = Math.fround(sum + term);
      return { query: value, key: key[d], term, sum };
    });
  }

  const computeScore = (query, key) => Math.fround(scoreTerms(query, key).at(-1).sum * Math.fround(page.scale));

  function fillTable(table, rows) {
    find("tbody", table).replaceChildren(
      ...rows.map(([head, ...cells]) => {
        const first = element("th", head);
        first.scope = "row";
        return element("tr", [first, ...cells.map((cell) => element("td", cell))]);
      }),
    );
  }

  function numberElement(value, shown) {
    const made = element("data", shown);
    made.value = String(value);
    made.title = shortestDecimal(value);
    return [made];
  }

  function showScore() {
    const { head, position, key } = chosen;
    const query = getRow(`${page.block}.q`, head, position);
    const keys = Array.from({ length: position + 1 }, (_, at) => getRow(`${page.block}.k`, head, at));
    const terms = scoreTerms(query, keys[key]);
    find("#score-says").replaceChildren(
      `Head ${head}: how much does token `, ...numberedToken(position), " look at token ", ...numberedToken(key), "?",
    );
    fillTable(find("#score-terms table"), terms.map((t, d) => [
      String(d), ...["query", "key", "term", "sum"].map((part) => numberElement(t[part], formatNumber(t[part]))),
    ]));
    const score = computeScore(query, keys[key]);
    find("#score-sum").replaceChildren(
      "The sum is ", ...numberElement(terms.at(-1).sum, formatNumber(terms.at(-1).sum)),
      `; times the scale of ${formatNumber(page.scale)} it is the score, `, ...numberElement(score, formatNumber(score)), ".",
    );
    const scores = keys.map((each) => computeScore(query, each));
    const most = Math.max(...scores);
    const exponentials = scores.map((s) => Math.fround(Math.exp(Math.fround(s - most))));
    const total = exponentials.reduce((a, b) => a + b);
    fillTable(find("#score-row table"), scores.map((s, at) => {
      const weight = getRow("pattern", head, position)[at];
      return [numberedToken(at), numberElement(s, formatNumber(s)), numberElement(exponentials[at], formatNumber(exponentials[at])),
        numberElement(exponentials[at] / total, formatProbability(exponentials[at] / total)), numberElement(weight, formatProbability(weight))];
    }));
    for (const letter of "qkv") redraw(find(`[data-strip="${page.block}.${letter}"]`));
  }

  const choice = find("#score-choice");
  choice.addEventListener("change", () => {
    chosen.head = Number(choice.head.value);
    chosen.position = Number(choice.query.value);
    chosen.key = Math.min(Number(choice.key.value), chosen.position);
    choice.key.value = String(chosen.key);
    for (const option of choice.key.options) option.disabled = Number(option.value) > chosen.position;
    showScore();
  });
  for (const option of choice.key.options) option.disabled = Number(option.value) > chosen.position;

  // Sampling: the same steps and the same rounding as in gpt2np/generation.

  const logits = array("next.logits").data;

  function softmax(values, total = 0) {
    let most = -Infinity;
    for (const value of values) most = Math.max(most, value);
    const exponentials = Float64Array.from(values, (value) => Math.exp(value - most));
    for (const value of exponentials) total += value;
    return exponentials.map((value) => value / total);
  }

  function applyTemperature(temperature) {
    let most = -Infinity;
    for (const value of logits) most = Math.max(most, value);
    return logits.map((value) => Math.fround(value - most) / temperature);
  }

  /** Apply top-k, then top-p, then min-p; removed logits become -Infinity. */
  function applyFilters(scaled, { top_k: k, top_p: p, min_p: least }) {
    const kept = Float32Array.from(scaled);
    const removedBy = { top_k: [], top_p: [], min_p: [] };
    const remove = (id, by) => { kept[id] = -Infinity; removedBy[by].push(id); };
    const rising = Uint32Array.from(scaled, (_, id) => id).sort((a, b) => scaled[a] - scaled[b] || a - b);
    if (k > 0 && k < scaled.length) {
      const lowest = scaled[rising[rising.length - k]];
      for (const id of rising) if (scaled[id] < lowest) remove(id, "top_k");
    }
    if (p < 1) {
      const shares = softmax(kept);
      let below = 0;
      for (const id of rising.subarray(0, -1)) {
        below += shares[id];
        if (Math.fround(below) > Math.fround(1 - p)) break;
        if (kept[id] !== -Infinity) remove(id, "top_p");
      }
    }
    if (least > 0) {
      const shares = softmax(kept);
      const limit = least * shares[rising.at(-1)];
      for (const id of rising) if (kept[id] !== -Infinity && shares[id] < limit) remove(id, "min_p");
    }
    return { kept, removedBy };
  }

  function sample(options) {
    if (options.temperature === 0) {
      const best = logits.indexOf(logits.reduce((a, b) => Math.max(a, b)));
      const certain = Float64Array.from(logits, (_, id) => (id === best ? 1 : 0));
      return { probabilities: certain, mass: 1, lost: {}, count: 1 };
    }
    const scaled = applyTemperature(options.temperature);
    const whole = softmax(scaled);
    const { kept, removedBy } = applyFilters(scaled, options);
    const lost = {};
    for (const [by, ids] of Object.entries(removedBy)) lost[by] = ids.reduce((sum, id) => sum + whole[id], 0);
    const mass = whole.reduce((sum, p, id) => (kept[id] === -Infinity ? sum : sum + p), 0);
    const count = kept.reduce((n, value) => n + (value !== -Infinity), 0);
    return { probabilities: softmax(kept), mass, lost, count };
  }

  const sliders = find("#sliders");

  function showSampling() {
    const options = {};
    for (const input of findAll("input", sliders)) {
      options[input.name] = Number(input.value);
      find(`#value-${input.name}`).value = input.value;
    }
    find("#value-top_k").value = options.top_k || "off";
    const { probabilities, mass, lost, count } = sample(options);
    const bars = findAll(".bar[data-id]");
    let rest = 1;
    const most = Math.max(...bars.map((bar) => probabilities[Number(bar.dataset.id)]));
    for (const bar of bars) {
      const p = probabilities[Number(bar.dataset.id)];
      rest -= p;
      bar.dataset.sampled = String(p);
      bar.style.setProperty("--p", p.toFixed(6));
      bar.style.setProperty("--max", most.toFixed(6));
      find(".sampled", bar.parentElement).textContent = p ? formatProbability(p) : "discarded";
      bar.closest("tr").classList.toggle("discarded", !p);
    }
    const others = find('.sampled[data-id="rest"]');
    if (others) others.textContent = formatProbability(Math.max(0, rest < 1e-12 ? 0 : rest));
    showMass(options, mass, lost, count);
  }

  function showMass({ temperature }, mass, lost, count) {
    find(".mass .kept").style.width = `${100 * mass}%`;
    for (const part of findAll(".mass .lost")) {
      const share = lost[part.dataset.by] || 0;
      part.style.width = `${100 * share}%`;
      part.style.display = share > 0 ? "" : "none";
    }
    const named = { top_k: "top-k", top_p: "top-p", min_p: "min-p" };
    const by = Object.entries(lost).filter(([, share]) => share > 0).map(([name, share]) => `${formatProbability(share)} by ${named[name]}`);
    const words = temperature === 0
      ? "Temperature 0: always the most likely token."
      : `Kept: ${count.toLocaleString("en")} of ${logits.length.toLocaleString("en")} tokens with ${formatProbability(mass)} of the probability at this temperature. ` +
        (by.length ? `Discarded: ${by.join(", ")}.` : "Nothing is discarded.");
    const says = find("#mass-says");
    says.textContent = words;
    Object.assign(says.dataset, { kept: mass, count, lost: JSON.stringify(lost) });
    find("#mass").setAttribute("aria-label", words);
  }

  sliders.addEventListener("input", showSampling);
  sliders.addEventListener("reset", () => setTimeout(showSampling));
  sliders.addEventListener("submit", (event) => event.preventDefault());

  // Tooltips with all digits of a number; every collapsible part is open in print.

  document.addEventListener("pointerover", (event) => {
    const pointed = event.target.closest?.("data[data-of]");
    if (pointed) pointed.title = pointed.value;
  });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = findAll("details:not([open])");
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));

  document.documentElement.classList.add("js");
  showSampling();
})();
