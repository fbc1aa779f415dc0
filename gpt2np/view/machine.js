// The Machine: a pass as a picture that moves. Its data is a description of a pass.

import { chipOf, lineChipOf, nextChipOf } from "./numbers.js";
import { readPass } from "./pass.js";
import { modelAt, setLetters } from "./scenes.js";
import { drawStage, layOut, paintStrips, phasesOf, secondsOf } from "./stage.js";
import { button, clamp, dataElement, element, percent, rovingFocus, withSpaces } from "./view.js";
import { phaseName, sentence, stopsOf } from "./words.js";
import { createZoom } from "./zoom.js";

const MOST_BARS = 9;
const LEAST_BAR = 0.2; // of a bar of full length: unlikely tokens get short bars
// What the picture's signs mean, and the moment from which each is in the picture.
const KEY = /** @type {[number, string, string, string][]} */ ([
  [-1, "␣", "", "a space"],
  [0, "■", "blue", "above zero"],
  [0, "■", "orange", "below zero"],
  [1, "━━━", "heads", "looks back; each color is a head"],
  [2, "●", "", "a strong neuron"],
]);

/**
 * Build the Machine in `root`. `onPick(id)` is called for a token of the answer that is pressed,
 * `onSwitch(part)` for a part ("layer,head", "layer,mlp", "layer,nNEURON") that is switched off or
 * on, `onRun()` when the buttons that had the focus go. `source` has the numbers beyond the
 * description; `draw` (draw.js) shows how the token is drawn.
 */
export function createMachine(root, options = /** @type {any} */ ({})) {
  const { onPick, onSwitch, onRun, source, draw } = options;
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  let pass = null;
  let shown = /** @type {any} */ ({}); // the token that came, and how
  let phases = [];
  let moment = 0;
  let stops = null; // of the guide
  let isWriting = false; // a text, of which this is a pass
  let pace = 1;
  let playing = null; // { end, finish } of a pass that plays or waits
  let frame = 0;
  let place = null;
  let strips = null;
  let colors = null;
  let bottom = Infinity; // the line after the last one in sight
  let chosen = 0; // the line that was pressed; the pointer only looks at others
  const view = { line: 0, head: null, named: null, pointed: null, bars: [], off: new Set() };

  const labels = element("div", {
    class: "machine-lines",
    role: "listbox",
    "aria-label": "The tokens that are read, a row each",
  });
  const canvas = element("canvas", { class: "machine-canvas", role: "img" });
  const answerTitle = element("p", { class: "machine-says" });
  const bars = element("ol", { class: "machine-bars" });
  const key = element("ul", { class: "machine-key" });
  for (const [, sign, color, means] of KEY)
    key.append(element("li", {}, element("b", { class: color }, sign), ` ${means}`));
  const answer = element("div", { class: "machine-answer" }, answerTitle, bars, key);
  if (draw) answerTitle.after(draw.root);
  const blocks = element("div", { class: "machine-blocks", role: "group", "aria-label": "Blocks" });
  const caption = element("p", { class: "machine-caption", role: "status" });
  const dots = element("span", { class: "dots", "aria-hidden": "true" });
  const play = button("Play", () => (frame ? pause() : start()), { class: "play" });
  const skip = button("Just write", () => skipStops(), { class: "skip-stops" });
  const next = button("Next ▸", () => goOn(), { class: "forth primary" });
  const range = element("input", {
    ...{ type: "range", class: "moment", min: 0, step: 0.05, hidden: true },
    "aria-label": "Moment of the pass",
  });
  const crumbs = element("nav", { class: "machine-crumbs", "aria-label": "Place in the model" });
  const picture = element(
    "div",
    { class: "machine-picture" },
    element("div", { class: "machine-view" }, canvas),
    blocks,
  );
  const stage = element("div", { class: "machine-stage" }, labels, picture, answer);
  root.classList.add("machine");
  root.append(
    crumbs,
    stage,
    element("div", { class: "transport" }, caption, dots, range, play, skip, next),
  );
  const zoom = createZoom({
    ...{ canvas, picture, crumbs, source },
    say(nodes) {
      said = "";
      if (nodes) caption.replaceChildren(...nodes);
      else render();
    },
    model: {
      items: [],
      paint: (context) => drawStage(context, pass, strips, place, colors, moment, view),
      at: (x, y) => place && modelAt(pass, place, view, x, y, { moment, canSwitch: canSwitch() }),
    },
    context: () => ({
      ...{ pass, colors, line: view.line, off: view.off, width: place.width, height: place.height },
      rows:
        place.rows === pass.count
          ? { y: place.y(0) - place.pitch / 2, h: place.pitch * pass.count }
          : { y: 0, h: place.height },
    }),
    lookAt: hover,
    pointAt(arc) {
      if (arc?.part === view.pointed?.part && arc?.key === view.pointed?.key) return;
      view.pointed = arc;
      render();
    },
    mayEnter: () => stops || !isWriting,
    setLine: (line) => choose(line),
    press: (part) => onSwitch?.(part),
    actions(level) {
      if (!canSwitch() || level?.layer === undefined) return [];
      const part = `${level.layer},${level.head ?? "mlp"}`;
      const name = level.head === undefined ? "all neurons" : `head ${level.head}`;
      const to = view.off.has(part) ? "on" : "off";
      return [button(`Switch ${name} ${to}`, () => onSwitch(part), { class: "switch" })];
    },
    onChange(level) {
      pause();
      if (!level && stops) choose(pass.count - 1); // the guide's row
    },
  });
  // ---- time

  /** What there is to press: nothing at "rest" and while it "writes"; in the "guide"; "free". */
  function setMode() {
    const waiting = shown.isOpen ? "rest" : isWriting ? "writes" : "free";
    const mode = (root.dataset.mode = stops ? "guide" : waiting);
    const hadFocus = [skip, next].some((each) => each === document.activeElement);
    play.hidden = range.hidden = mode === "guide" || mode === "rest";
    skip.hidden = dots.hidden = mode !== "guide";
    next.hidden = mode === "rest"; // while a text is written they keep their place, out of sight
    next.classList.toggle("primary", mode === "guide");
    if (hadFocus && mode === "writes") onRun?.();
    play.textContent = frame ? "Pause" : "Play";
    const of = stopsOf(phases);
    const passed = stops?.[0] === 0 ? of.length + 1 : of.filter((stop) => moment >= stop).length;
    dots.textContent = "●".repeat(passed) + "○".repeat(of.length + 1 - passed);
    said = "";
    render();
  }

  /** The guide and a text that is being written are not disturbed by a press in the picture. */
  const canSwitch = () => Boolean(onSwitch) && !stops && !isWriting;
  const isAtEnd = () => moment >= phases.length;

  /** Play the pass again. */
  function start() {
    zoom.leave();
    if (isAtEnd()) moment = 0;
    run(phases.length);
  }

  /** Let the guide go on to its next stop, or the pass to its end. */
  function go() {
    zoom.leave();
    run(stops?.find((stop) => stop > moment) ?? phases.length);
  }

  /** Play up to a moment; with reduced motion, show it. */
  function run(end) {
    cancelAnimationFrame(frame);
    let before = performance.now();
    const tick = (now) => {
      const phase = phases[Math.min(phases.length - 1, Math.floor(moment))];
      const passed = (Math.max(0, now - before) / 1000) * pace;
      moment = Math.min(end, moment + passed / secondsOf(phase, pass));
      before = now;
      frame = moment < end ? requestAnimationFrame(tick) : 0;
      render();
      if (!frame) arrive();
    };
    if (!reducedMotion.matches) frame = requestAnimationFrame(tick);
    else {
      moment = end;
      render();
      arrive();
    }
    setMode();
  }

  function arrive() {
    frame = 0;
    setMode();
    if (!isAtEnd()) return;
    playing?.onEnd();
    if (!stops) finish();
  }

  function finish() {
    const { resolve } = playing ?? {};
    const wasGuided = Boolean(stops);
    playing = stops = null;
    pace = 1;
    setMode();
    resolve?.(wasGuided);
  }

  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
    setMode();
  }

  function skipStops() {
    stops = null;
    if (isAtEnd()) finish();
    else go();
  }

  function goOn() {
    if (!stops) step();
    else if (frame) {
      // the phase ends at once
      pause();
      show(stops.find((stop) => stop > moment) ?? phases.length);
      arrive();
    } else if (isAtEnd()) finish();
    else if (moment < stops.at(-1)) go();
    else skipStops();
  }

  function step() {
    pause();
    zoom.leave();
    if (isAtEnd()) moment = 0;
    run(Math.floor(moment + 1e-9) + 1);
  }

  function show(value) {
    moment = value;
    render();
    setMode();
  }

  range.addEventListener("input", () => {
    const asked = Number(range.value); // before leaving shows the old moment again
    pause();
    zoom.leave();
    show(asked);
  });
  range.addEventListener("keydown", (event) => {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    pause();
    const to = direction > 0 ? Math.floor(moment) + 1 : Math.ceil(moment) - 1;
    show(Math.min(phases.length, Math.max(0, to)));
  });

  // ---- what is on the page

  let said = "";

  function render() {
    if (!place || !pass) return; // not laid out yet; the observer of the canvas calls again
    const at = Math.min(phases.length - 1, Math.max(0, Math.ceil(moment) - 1));
    const phase = phases[at];
    const isNamed = phase.kind === "attention" && !(stops && phase.layer) && !isAtEnd();
    const look = isNamed && pass.strongestLook(phase.layer, view.line);
    view.named = view.pointed ?? (look ? { ...look, part: `${phase.layer},${look.head}` } : null);
    if (!zoom.isInside) drawNow();
    range.value = String(moment);
    const now = `${at} ${chosen} ${moment > 0} ${checkpoint()}`;
    if (now !== said) {
      said = now;
      if (!zoom.isInside) caption.replaceChildren(...words(phase));
      range.setAttribute("aria-valuetext", phaseName(phase));
      renderAnswer(phase.kind);
      KEY.forEach(([from], i) => {
        const isShown = from < moment || (zoom.isInside && !from); // numbers are inside, too
        /** @type {any} */ (key.children[i]).hidden = !isShown;
      });
      for (const each of blocks.children)
        each.classList.toggle("now", Number(each.dataset.layer) === phase.layer);
    }
    const grown = phase.kind === "answer" ? clamp(moment - at).toFixed(3) : "1";
    bars.style.setProperty("--grow", grown);
    const drawn = phase.kind === "draw" ? clamp(moment - at) : null;
    draw?.render(drawn);
    root.dataset.moment = moment.toFixed(3);
  }

  function words(phase) {
    if (shown.says && !moment && (shown.isOpen || stops)) return shown.says;
    if (isWriting && !stops) return ["The same again for each new token, faster and faster."];
    if (phase.kind === "draw" && chosen === pass.count - 1) return draw.says(pass, shown);
    return sentence(pass, phase, chosen, stops);
  }

  /** The number of blocks that the line has passed, or null before the first. */
  const checkpoint = () => {
    const count = Math.min(pass.n_layer, Math.floor((moment - 1) / 2));
    return count < 1 ? null : count;
  };

  function drawNow() {
    const start = performance.now();
    zoom.draw();
    (root.frames ??= []).push(performance.now() - start); // read by the tests
    if (root.frames.length > 600) root.frames.shift();
  }

  /** The rows of the answer: `p` and, if it was another, `before`; null if they are not due yet. */
  function answerRows(kind) {
    const isLast = chosen === pass.count - 1;
    const isDue = kind === "answer" || kind === "draw";
    if (isDue && isLast) {
      return pass.next.map(({ id, logprob, sampled }) => {
        const p = Math.exp(logprob);
        if (shown.was) return { id, p, before: shown.was.get(id) ?? p };
        return kind === "draw" ? { id, p: sampled, before: p } : { id, p, before: p };
      });
    }
    if (stops || shown.isOpen || checkpoint() === null) return null;
    const guess = pass.guess(checkpoint(), chosen);
    return guess && guess.ids.map((id, i) => ({ id, p: guess.probabilities[i], before: null }));
  }

  function titleOf(kind) {
    if (kind === "draw" && chosen === pass.count - 1)
      return [shown.was ? "With the gray parts off: before → now" : shown.title || "Chance picks"];
    if (kind === "answer" && chosen === pass.count - 1) return ["What could come next, how likely"];
    return ["After ", lineChipOf(pass, chosen), `, block ${checkpoint() - 1} would say`];
  }

  function renderAnswer(kind) {
    const rows = answerRows(kind);
    answer.classList.toggle("due", Boolean(rows));
    answer.classList.toggle("drawn", kind === "draw" && rows !== null);
    draw?.show(pass, shown.token, shown.drawn);
    const isNext = chosen === pass.count - 1;
    answerTitle.replaceChildren(...(rows ? titleOf(kind) : []));
    const isFinal = Boolean(rows) && (kind === "draw" || kind === "answer") && isNext;
    const followed = kind === "draw" ? rows?.find(({ id }) => id === shown.token) : undefined;
    const [likeliest] = shown.was?.keys() ?? []; // before a change: it stays in sight
    const before = isFinal ? rows.find(({ id }) => id === likeliest) : undefined;
    const first = [followed, before].filter(Boolean);
    const listed = [...new Set([...first, ...(rows ?? [])])]
      .slice(0, place.bars)
      .sort((a, b) => b.p - a.p);
    const drawn = isFinal && !shown.was ? pass.next.map(({ sampled }) => sampled ?? 0) : [];
    const all = [...listed.flatMap(({ p, before }) => [p, before ?? 0]), ...drawn];
    const most = Math.max(...all, LEAST_BAR); // one scale before and after the draw
    const nameOf = (id) => {
      if (!isFinal) return isNext ? nextChipOf(pass, id) : chipOf(pass, id);
      const word = withSpaces(pass.nextText(id));
      if (!onPick || !shown.picks) return nextChipOf(pass, id);
      const name = { class: "token", "aria-label": `Continue with ${word}` };
      return button(word, () => onPick(id), name);
    };
    bars.replaceChildren(
      ...listed.map((row) => {
        const { id, p, before } = row;
        const isChanged = before !== null && Math.abs(before - p) >= 5e-4;
        const old = isChanged ? [element("span", { class: "soft" }, `${percent(before)} → `)] : [];
        const share = element("span", {}, ...old, dataElement(p, p ? percent(p) : "cut off"));
        const isOwn = row === followed && isFinal;
        return element(
          "li",
          { "data-id": id, class: isOwn && "own", p: p / most },
          nameOf(id),
          share,
        );
      }),
    );
    measureBars(isFinal);
    if (stops && rows) answer.scrollIntoView({ block: "nearest" });
  }

  /** Where the bars are beside the picture, for the curves that lead to them. */
  function measureBars(isFinal) {
    const { top, bottom } = canvas.parentElement.getBoundingClientRect(); // canvas may be growing
    const isBeside = answer.getBoundingClientRect().top < bottom - 40;
    const shares = new Map(pass.next.map(({ id, logprob }) => [id, Math.exp(logprob)]));
    const most = Math.max(...shares.values());
    const rows = isFinal && isBeside ? [...bars.children] : [];
    view.bars = rows.map((each) => {
      const box = each.getBoundingClientRect();
      const share = (shares.get(Number(each.dataset.id)) ?? 0) / most;
      return { y: box.top - top + box.height / 2, share };
    });
  }

  // ---- building for a pass

  function build() {
    const made = (layer) =>
      button(
        "",
        (event) => {
          event.stopPropagation();
          zoom.open({ kind: "block", layer });
        },
        { "data-layer": layer, "aria-label": `Block ${layer}` },
      );
    blocks.replaceChildren(...Array.from({ length: pass.n_layer }, (_, layer) => made(layer)));
    canvas.setAttribute(
      "aria-label",
      `${pass.count} tokens as rows through ${pass.n_layer} blocks, which have tables inside`,
    );
    range.max = String(phases.length);
    repaint();
  }

  function labelLines() {
    const rows = [];
    if (place.hasEarlier) {
      const name = `${pass.first + place.hidden} before`;
      rows.push(
        place.hidden
          ? button(`▴ ${name}`, () => scroll(2 - place.rows), { class: "earlier" })
          : element("span", { class: "earlier" }, name),
      );
    }
    for (let line = place.hidden; line < place.hidden + place.rows; line++) {
      const word = withSpaces(pass.lineText(line));
      const more = { role: "option", tabindex: line === chosen ? 0 : -1, "data-line": line };
      const state = { class: line === view.line && "looked", "aria-selected": line === chosen };
      rows.push(element("span", { ...more, ...state, title: word }, element("bdi", {}, word)));
      rows.at(-1).setAttribute("aria-selected", String(line === chosen));
    }
    const after = pass.count - place.hidden - place.rows;
    if (after)
      rows.push(button(`▾ ${after} after`, () => scroll(place.rows - 2), { class: "later" }));
    labels.replaceChildren(...rows);
  }

  function scroll(lines) {
    bottom = Math.min(pass.count, Math.max(place.rows, place.hidden + place.rows + lines));
    view.line = chosen = Math.min(Math.max(chosen, bottom - place.rows), bottom - 1);
    resize();
    labels.querySelector('[tabindex="0"]')?.focus();
  }

  const lineFocus = rovingFocus(labels, "[data-line]");
  const lineOf = (event) => {
    const found = event.target.closest("[data-line]");
    return found ? Number(found.dataset.line) : null;
  };
  /** Show the arcs of a line that the pointer is on; the guide keeps its own. */
  function hover(line) {
    if (!stops && !shown.isOpen) lookAt(line);
  }
  function lookAt(line) {
    if (line === null || line === view.line) return;
    view.line = line;
    for (const each of labels.querySelectorAll("[data-line]"))
      each.classList.toggle("looked", Number(each.dataset.line) === line);
    render();
  }
  function choose(line) {
    lookAt(line);
    if (line === null || line === chosen) return;
    chosen = line;
    render();
    for (const each of labels.querySelectorAll("[data-line]"))
      each.setAttribute("aria-selected", String(Number(each.dataset.line) === line));
    zoom.refresh();
  }
  /** Go into the embedding of a line's token. */
  function openToken(line) {
    if (line === null) return;
    choose(line);
    zoom.open({ kind: "token", id: pass.lineIds[line] });
  }
  labels.addEventListener("focusin", (event) => choose(lineOf(event)));
  labels.addEventListener("click", (event) => openToken(lineOf(event)));
  labels.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      openToken(lineOf(event));
    }
  });
  labels.addEventListener("pointerover", (event) => {
    if (!zoom.isInside) hover(lineOf(event)); // inside a part the names may move
  });
  stage.addEventListener("pointerleave", () => {
    if (pass) lookAt(chosen);
  });

  function readColors() {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    const triple = (name) => of(name).split(" ").map(Number);
    const names = ["rule", "soft", "ink", "blue", "orange", "chance"];
    return {
      isDark: matchMedia("(prefers-color-scheme: dark)").matches,
      ...Object.fromEntries(names.map((name) => [name, of(`--${name}`)])),
      paper: of("--raised"),
      plus: triple("--blue-rgb"),
      minus: triple("--orange-rgb"),
    };
  }

  function resize() {
    if (!pass) return;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const size = parseFloat(getComputedStyle(labels).fontSize);
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    setLetters(rem / 16);
    const bar = parseFloat(getComputedStyle(bars).lineHeight);
    const room = bars.clientHeight || MOST_BARS * bar;
    const count = Math.max(3, Math.min(MOST_BARS, Math.floor(room / bar)));
    place = { ...layOut(pass, width, height, bottom, (24 / 17) * size), bars: count };
    [...blocks.children].forEach((each, layer) => {
      each.textContent = String(layer);
      each.style.left = `${place.left(layer)}px`;
      each.style.width = `${place.block}px`;
    });
    if (chosen < place.hidden) view.line = chosen = place.hidden + place.rows - 1;
    labelLines();
    lineFocus.reset();
    said = "";
    render();
    zoom.refresh();
  }

  function repaint() {
    if (!pass) return;
    colors = readColors();
    strips = paintStrips(pass, colors);
    resize();
  }

  new ResizeObserver(resize).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  return {
    /**
     * Show a pass. `token` came after it (null: nothing yet); `title` says how it was drawn. Parts
     * in `off` are gray, and `was` has the rows of `next` with all parts on. Tokens of the answer
     * can be pressed if `picks`. With `isOpen` no token is picked yet, and the picture waits at the
     * start with the sentence `says`; `plays` waits there for `play`.
     */
    show(described, options = /** @type {any} */ ({})) {
      const { token = null, off = [], was = null, isOpen = false, plays = false } = options;
      pause();
      finish();
      pass = readPass(described);
      const drawn = described.draw?.id === token ? described.draw.number : null;
      shown = { picks: true, ...options, token, isOpen, drawn };
      shown.was = was && new Map(was.map(({ id, logprob }) => [id, Math.exp(logprob)]));
      phases = phasesOf(pass, Boolean(draw));
      view.off = new Set(off);
      view.pointed = null;
      view.line = chosen = pass.count - 1;
      bottom = Infinity;
      if (isOpen || plays || zoom.isToken) zoom.leave();
      if (view.head >= pass.n_head) view.head = null;
      moment = isOpen || plays ? 0 : phases.length;
      root.hidden = false; // the picture needs its size
      build();
      if (zoom.isInside) zoom.refresh(true);
      setMode();
      root.dataset.ready = "true";
    },
    /**
     * Play the pass in `seconds`, with the guide's stops, or after a stop at its start (`waits`);
     * `onEnd()` is called when the token has been drawn. The promise is fulfilled when the next
     * pass may come, and by `stop()`; it tells whether the guide was not left.
     */
    play({ seconds, isGuided = false, waits = false, onEnd }) {
      stops = waits ? [0] : isGuided ? stopsOf(phases) : null;
      const whole = phases.reduce((sum, phase) => sum + secondsOf(phase, pass), 0);
      pace = whole / seconds;
      return new Promise((resolve) => {
        playing = { resolve, onEnd };
        if (waits) setMode();
        else go();
      });
    },
    stop() {
      pause();
      finish();
    },
    /** Whether a text is being written, of which the passes are shown. */
    set writing(is) {
      isWriting = is;
      setMode();
    },
    /** Show the arcs of one head only; null: of all. */
    isolate(head) {
      view.head = head;
      render();
    },
    tables: zoom.sheet,
    get pass() {
      return pass;
    },
  };
}
