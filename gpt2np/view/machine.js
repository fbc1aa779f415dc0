// The Machine: a pass as a picture that moves. Its data is a description of a pass, wherever it
// came from.

import { createDraw } from "./draw.js";
import { SECTIONS, chipOf, createNumbers, lineChipOf, nextChipOf } from "./numbers.js";
import { readPass } from "./pass.js";
import { drawStage, headColor, layOut, paintStrips, phasesOf, secondsOf } from "./stage.js";
import { createZoom } from "./zoom.js";
import { modelAt } from "./scenes.js";
import {
  bar,
  button,
  dataElement,
  element,
  percent,
  rovingFocus,
  shareElement,
  visible,
  withSpaces,
} from "./view.js";

const N_BARS = 9;
const N_TEXT = 40; // tokens of the text above the picture
// a bar of full length stands for at least this probability, so that unlikely guesses get short
// bars
const LEAST_BAR = 0.2;
const LEGEND =
  "Strips: a token’s numbers, blue above zero, orange below. Arcs: what it takes from tokens before it. Gold dots: the strongest neurons.";
const KEY =
  // inside a part
  "Blue is above zero, orange below; the stronger the color, the larger the number. In a pattern, a darker cell takes more.";

/**
 * Build the Machine in `root`. `onEnd()` is called when a pass has been played; it may show the
 * next one.
 * `onPick(id)` is called for a token of the answer that is pressed.
 * `onSwitch(part)` switches a part ("layer,head", "layer,mlp") off, or on again; `source` gives the
 * numbers beyond the description (as `serverSource` of api.js), if there is one.
 * `sections` are the tables of `panels`.
 */
export function createMachine(
  root,
  { onEnd = null, onPick = null, onSwitch = null, source = null, sections = SECTIONS } = {},
) {
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  let pass = null;
  // the token that came, and how it was picked
  let shown = { token: null, title: "", isChanged: false, picks: true, was: new Map() };
  let phases = [];
  let moment = 0;
  let isPlaying = false; // also between two passes
  let frame = 0;
  let place = null;
  let strips = null;
  let colors = null;
  let block = 0;
  let bottom = Infinity; // the line after the last one in sight
  let chosen = 0; // the line that was pressed; the pointer only looks at others
  const view = { line: 0, head: null, bars: [], off: new Set() };

  // the text, and the place of the next token
  const [read, slot] = [element("span"), element("span", { class: "slot" })];
  const text = element(
    "p",
    { class: "machine-text", dir: "auto", "aria-label": "The text that the model reads" },
    read,
    slot,
  );
  const labels = element("div", {
    class: "machine-lines",
    role: "group",
    "aria-label": "The last tokens: a line each",
  });
  const canvas = element("canvas", { class: "machine-canvas", role: "img" });
  const answerTitle = element("p", { class: "machine-says" });
  const draw = createDraw();
  const bars = element("ol", { class: "machine-bars" });
  const answer = element("div", { class: "machine-answer" }, answerTitle, draw.root, bars);
  const blocks = element("div", { class: "machine-blocks", role: "group", "aria-label": "Blocks" });
  const play = button("Play", () => (isPlaying ? pause() : start()), { class: "play primary" });
  const range = element("input", {
    type: "range",
    class: "moment",
    min: 0,
    step: 0.05,
    "aria-label": "Moment of the pass",
  });
  const heads = element("div", {
    class: "machine-heads",
    role: "group",
    "aria-label": "Heads to show",
  });
  const caption = element("p", { class: "machine-caption", role: "status" });
  const crumbs = element("nav", {
    class: "machine-crumbs",
    "aria-label": "Where you are in the model",
  });
  const picture = element(
    "div",
    { class: "machine-picture" },
    element("div", { class: "machine-view" }, canvas),
    blocks,
  );
  const stage = element("div", { class: "machine-stage" }, labels, picture, answer);
  const legend = element("p", { class: "machine-readout" }, LEGEND);
  const panels = element("div", { class: "machine-numbers" });
  const showNumbers = createNumbers(panels, sections);
  root.classList.add("machine");
  root.append(
    element("div", { class: "machine-head" }, text, crumbs),
    stage,
    element(
      "div",
      { class: "transport" },
      button("‹ Step", () => step(-1), { class: "back", "aria-label": "Step back" }),
      play,
      button("Step ›", () => step(1), { class: "forth", "aria-label": "Step" }),
      range,
      heads,
    ),
    caption,
    legend,
  );
  const zoom = createZoom({
    canvas,
    picture,
    crumbs,
    source,
    say: (nodes) => {
      if (nodes) caption.replaceChildren(...nodes);
      else {
        said = "";
        render();
      }
    },
    model: {
      items: [],
      paint: (context) => drawStage(context, pass, strips, place, colors, moment, view),
      at: (x, y) => place && modelAt(pass, place, x, y),
    },
    context: () => ({
      pass,
      line: view.line,
      colors,
      off: view.off,
      width: place.width,
      height: place.height,
      rows:
        place.rows === pass.count
          ? { y: place.y(0) - place.pitch / 2, h: place.pitch * pass.count }
          : { y: 0, h: place.height },
    }),
    lookAt: (line) => lookAt(line),
    setLine: (line) => choose(line),
    actions: (level) => {
      if (!onSwitch || level?.layer === undefined) return [];
      const [key, name] =
        level.head === undefined
          ? [`${level.layer},mlp`, "the MLP"]
          : [`${level.layer},${level.head}`, `head ${level.head}`];
      return [
        button(`Switch ${name} ${view.off.has(key) ? "on" : "off"}`, () => onSwitch(key), {
          class: "switch",
        }),
      ];
    },
    onChange: (level) => {
      showText(); // the path beside it may be longer now
      legend.textContent = level ? KEY : LEGEND;
      if (level?.layer !== undefined) chooseBlock(level.layer);
    },
  });
  root.append(zoom.sheet);

  const chip = (id) => chipOf(pass, id);
  const nextChip = (id) => nextChipOf(pass, id);
  const lineChip = (line) => lineChipOf(pass, line);

  // ---- time

  function start() {
    zoom.leave();
    if (moment >= phases.length) moment = 0;
    run(phases.length, onEnd);
  }

  /** Play up to a moment, and call `next` there, if given; with reduced motion, show the moment. */
  function run(end, next = null) {
    pause();
    if (reducedMotion.matches) return show(end);
    isPlaying = true;
    play.textContent = "Pause";
    let before = performance.now();
    const tick = (now) => {
      const phase = phases[Math.min(phases.length - 1, Math.floor(moment))];
      moment = Math.min(end, moment + Math.max(0, now - before) / 1000 / secondsOf(phase, pass));
      before = now;
      render();
      if (moment >= end && end === phases.length) fall();
      if (moment < end) frame = requestAnimationFrame(tick);
      else if (next)
        next(); // the button stays at Pause until the next pass is there
      else pause();
    };
    frame = requestAnimationFrame(tick);
  }

  function pause() {
    isPlaying = false;
    play.textContent = "Play";
    cancelAnimationFrame(frame);
  }

  function step(direction) {
    pause();
    zoom.leave();
    if (direction < 0) show(Math.max(0, Math.ceil(moment) - 1));
    else if (moment >= phases.length) show(0);
    else run(Math.floor(moment + 1e-9) + 1);
  }

  function show(value) {
    moment = value;
    render();
  }

  range.addEventListener("input", () => {
    // leaving draws the moment before, and the range shows it again
    const asked = Number(range.value);
    pause();
    zoom.leave();
    show(asked);
  });
  range.addEventListener("keydown", (event) => {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    pause();
    show(
      Math.min(
        phases.length,
        Math.max(0, direction > 0 ? Math.floor(moment) + 1 : Math.ceil(moment) - 1),
      ),
    );
  });

  // ---- what is on the page

  let said = "";

  function render() {
    if (!place) return; // not laid out yet; the observer of the canvas calls again
    const at = Math.min(phases.length - 1, Math.floor(moment));
    const phase = phases[at];
    const isOver = moment >= phases.length;
    if (!zoom.isInside) drawNow();
    range.value = moment;
    const checkpoint =
      moment >= 2 + 2 * pass.n_layer - 1 ? pass.n_layer : Math.max(0, Math.floor((moment - 1) / 2));
    const key = `${at} ${isOver} ${view.line} ${checkpoint}`;
    if (key !== said) {
      said = key;
      const words = sayPhase(phase);
      if (!zoom.isInside) caption.replaceChildren(...words);
      range.setAttribute("aria-valuetext", nameOf(phase));
      renderAnswer(checkpoint, isOver || phase.kind === "draw");
      for (const each of blocks.children)
        each.classList.toggle("now", Number(each.dataset.layer) === phase.layer && !isOver);
    }
    bars.style.setProperty("--grow", phase.kind === "answer" ? (moment - at).toFixed(3) : "1");
    draw.render(phase.kind === "draw" ? Math.min(1, moment - at) : null);
    slot.classList.toggle("filled", isOver && shown.token !== null);
    root.dataset.moment = moment.toFixed(3);
  }

  function drawNow() {
    const start = performance.now();
    zoom.draw();
    // read by the tests and by benchmarks/playground.py
    (root.frames ??= []).push(performance.now() - start);
    if (root.frames.length > 600) root.frames.shift();
  }

  /**
   * The number that the draw fell on: the random one, or the middle of the token's share if it is
   * not known.
   */
  function drawnAt() {
    const { draw } = pass.described;
    if (shown.isChanged) return null;
    if (draw && draw.id === shown.token) return draw.number;
    const row = pass.next.find(({ id }) => id === shown.token);
    return row?.sampled ? row.from + row.sampled / 2 : null;
  }

  function renderAnswer(checkpoint, isDrawn) {
    const guess = pass.guess(checkpoint, view.line);
    const ofOther = guess && view.line < pass.count - 1;
    const isLast = moment >= phases.length - 2 && !ofOther;
    const point = guess ?? pass.lens[checkpoint];
    // the effect of changed parts is shown without temperature, top-k and top-p
    const [isSampled, isAfter] = [isDrawn && !shown.isChanged, isDrawn && shown.isChanged];
    const rows = isLast
      ? pass.next.map(({ id, logprob, sampled }) => ({
          id,
          p: isSampled ? sampled : Math.exp(logprob),
          before: isSampled ? Math.exp(logprob) : isAfter ? shown.was.get(id) : undefined,
        }))
      : point.ids.map((id, i) => ({ id, p: point.probabilities[i] }));
    const listed = rows.slice(0, N_BARS);
    const [best] = shown.was.keys(); // the likeliest before a change stays in sight
    const followed = rows.find(({ id }) => id === (shown.token ?? best));
    if (followed && !listed.includes(followed)) listed[N_BARS - 1] = followed;
    const most = Math.max(...listed.map(({ p }) => p), LEAST_BAR);
    const where = checkpoint ? `after block ${checkpoint - 1}` : "before the first block";
    if (ofOther)
      answerTitle.replaceChildren("After ", lineChip(view.line), `, asked ${where}, it would say`);
    else
      answerTitle.replaceChildren(
        isDrawn
          ? shown.title || "The draw: a ruler from 0 to 1"
          : isLast
            ? "The next token could be"
            : `Asked ${where}, it would say`,
      );
    bars.replaceChildren(
      ...listed.map((each) => {
        const { id, p, before = p } = each;
        const from =
          Math.abs(before - p) < 5e-4
            ? []
            : [element("span", { class: "soft" }, `${percent(before)} → `)];
        const word = withSpaces(pass.nextText(id));
        const name =
          onPick && shown.picks && isLast
            ? button(word, () => onPick(id), {
                class: "token",
                "aria-label": `Continue with ${word}`,
              })
            : ofOther
              ? chip(id)
              : nextChip(id);
        return element(
          "li",
          { "data-id": id, class: each === followed && isLast && "own" },
          name,
          element("span", {}, ...from, dataElement(p, p ? percent(p) : "cut off")),
          bar(p / most),
          ...(isAfter && each.before !== undefined
            ? [element("span", { class: "was", p: Math.min(1, before / most) })]
            : []),
        );
      }),
    );
    draw.show(pass, shown.token, drawnAt(), pass.described.draw?.id === shown.token);
    measureBars();
    if (ofOther) view.bars = []; // the curves lead from the last line
  }

  /** Where the bars are beside the picture, for the curves that lead to them. */
  function measureBars() {
    if (!place) return;
    // the canvas may be growing
    const { top, bottom } = canvas.parentElement.getBoundingClientRect();
    const isBeside = answer.getBoundingClientRect().top < bottom - 40;
    const rows = [...bars.children].filter((each) => each.offsetHeight);
    const most = Math.max(...pass.next.map((each) => Math.exp(each.logprob)));
    const shares = new Map(pass.next.map((each) => [each.id, Math.exp(each.logprob) / most]));
    view.bars = rows.map((each, i) => {
      const box = each.getBoundingClientRect();
      return {
        y: isBeside ? box.top - top + box.height / 2 : ((i + 0.5) * place.height) / rows.length,
        share: shares.get(Number(each.dataset.id)) ?? 0,
      };
    });
  }

  /** The token flies from its bar into the text. */
  function fall() {
    const from = shown.token !== null && bars.querySelector(".own")?.getBoundingClientRect();
    if (!from || reducedMotion.matches) return;
    const to = slot.getBoundingClientRect();
    slot.animate(
      [
        { transform: `translate(${from.left - to.left}px, ${from.top - to.top}px)` },
        { transform: "none" },
      ],
      { duration: 500, easing: "ease-in" },
    );
  }

  // ---- words

  const nameOf = ({ kind, layer }) =>
    ({
      embed: "embedding",
      attention: `block ${layer}, attention`,
      mlp: `block ${layer}, MLP`,
      answer: "answer",
      draw: "draw",
    })[kind];

  /** What temperature and filters did to a token's share of the ruler. */
  function sayStretch(own) {
    const p = Math.exp(own.logprob);
    return Math.abs(p - own.sampled) < 5e-4
      ? []
      : [
          ` Before, the settings ${own.sampled > p ? "stretched" : "shrank"} its share from `,
          shareElement(p),
          " to ",
          shareElement(own.sampled),
          ".",
        ];
  }

  function sayPhase({ kind, layer }) {
    const { line } = view;
    const token = lineChip(line);
    const isLast = line === pass.count - 1;
    const title = element(
      "b",
      {},
      `${nameOf({ kind, layer }).replace(/^./, (c) => c.toUpperCase())}. `,
    );
    const n = pass.n_embd.toLocaleString("en");
    if (kind === "embed") {
      return [
        title,
        `Each token becomes ${n} numbers: a learned row that says which token it is, plus one that says where it stands. Blue cells are above zero, orange below.`,
      ];
    }
    if (kind === "attention") {
      const best = pass.strongestLook(layer, line);
      return [
        title,
        "Each token takes in something from tokens before it; a wider arc takes more. ",
        token,
        ...(best
          ? [
              pass.first
                ? ", of the tokens in the picture before it, takes most from "
                : ", of the tokens before it, takes most from ",
              lineChip(best.key),
              ` (head ${best.head}: `,
              shareElement(best.weight),
              ").",
            ]
          : [" has no token before it in the picture."]),
      ];
    }
    if (kind === "mlp") {
      const [most] = pass.neurons(layer, line);
      const raised = isLast && pass.described.neurons?.[layer][0];
      return [
        title,
        `Now each token alone: ${pass.n_inner.toLocaleString("en")} neurons answer to its numbers and write into its line. For `,
        token,
        `, neuron ${most.neuron} writes most`,
        ...(raised
          ? [
              "; by itself it makes ",
              ...raised.raises.slice(0, 3).flatMap((id, i) => [i ? ", " : "", chip(id)]),
              " likelier, but all neurons together decide.",
            ]
          : ["."]),
      ];
    }
    if (!isLast && line === chosen)
      return [
        element("b", {}, "The line of "),
        token,
        ". ",
        line || pass.first
          ? "Its arcs and dots stay in the picture."
          : "No token is before it, so it takes in nothing.",
        " Only the last line predicts the next token.",
      ];
    if (kind === "answer") {
      return [
        title,
        `Only the last line predicts the next token. Its ${n} numbers are compared with a row for each of the ${pass.vocab_size.toLocaleString("en")} tokens; the better the fit, the likelier the token.`,
      ];
    }
    const { draw } = pass.described;
    const own = pass.next.find(({ id }) => id === shown.token);
    if (shown.token === null)
      return [
        title,
        "A ruler from 0 to 1 is divided among the tokens that can come, in the order of their numbers. Each token’s part is as long as its probability. ",
        pass.next.some(({ sampled }) => sampled === 1)
          ? "Here one token has all of it: nothing is left to chance."
          : `A random number picks one${onPick && shown.picks ? ": press “One token”, or a token" : ""}.`,
      ];
    if (shown.isChanged)
      return [
        title,
        "The token that came, ",
        nextChip(shown.token),
        ", has ",
        ...(own ? [shareElement(own.sampled)] : ["no place"]),
        " with the changed parts and the settings. A part that is off (gray) adds nothing, and everything after it is computed anew.",
      ];
    if (draw?.id === shown.token && own?.sampled < 1) {
      return [
        title,
        "The ruler has the tokens in the model’s own order, each as long as its probability. The random number ",
        dataElement(draw.number, draw.number.toFixed(4)),
        " falls on ",
        nextChip(shown.token),
        ": it is written, and all begins again with the longer text.",
        ...sayStretch(own),
      ];
    }
    return [
      title,
      "The ruler has the tokens in the model’s own order, each as long as its probability. ",
      nextChip(shown.token),
      own?.sampled === 1 ? " has all of it: nothing is left to chance." : " came.",
    ];
  }

  // ---- building for a pass

  function build() {
    blocks.replaceChildren(
      ...Array.from({ length: pass.n_layer }, (_, layer) =>
        button(
          "",
          (event) => {
            event.stopPropagation();
            openBlock(layer);
            zoom.open({ kind: "block", layer });
          },
          {
            "data-layer": layer,
            "aria-label": `Block ${layer}`,
            "aria-pressed": String(layer === block),
          },
        ),
      ),
    );
    heads.replaceChildren(
      button("all heads", () => isolate(null), {
        "data-head": "all",
        "aria-pressed": String(view.head === null),
      }),
      ...Array.from({ length: pass.n_head }, (_, head) => {
        const made = button(String(head), () => isolate(head), {
          "data-head": head,
          "aria-label": `Head ${head}`,
          "aria-pressed": String(view.head === head),
        });
        made.style.borderBottomColor = headColor(head);
        return made;
      }),
    );
    canvas.setAttribute(
      "aria-label",
      `${pass.count} tokens as lines through ${pass.n_layer} blocks; the tables below hold the numbers`,
    );
    range.max = phases.length;
    repaint();
  }

  /**
   * As much of the text's end as there is room for in one line, and the place of the next token.
   */
  function showText() {
    slot.textContent = shown.token === null ? "?" : visible(pass.nextText(shown.token));
    const pieces = pass.texts.map((each, i) =>
      each === "·" && i < pass.count + pass.first - 1 ? "" : visible(each),
    );
    for (let n = Math.min(N_TEXT, pieces.length); n > 0; n--) {
      read.textContent = (n < pieces.length ? "…" : "") + pieces.slice(-n).join("");
      if (text.scrollWidth <= text.clientWidth) break;
    }
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
    for (let line = place.hidden; line < pass.count; line++) {
      const word = withSpaces(pass.lineText(line));
      rows.push(
        button(element("bdi", {}, word), null, {
          tabindex: line === chosen ? 0 : -1,
          "data-line": line,
          class: line === view.line && "looked",
          "aria-pressed": String(line === chosen),
          "aria-label": `Line of ${word}`,
        }),
      );
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
    renderNumbers();
    labels.querySelector('[tabindex="0"]')?.focus();
  }

  const lineFocus = rovingFocus(labels, "[data-line]");
  const lineOf = (event) => {
    const found = event.target.closest("[data-line]");
    return found ? Number(found.dataset.line) : null;
  };
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
    for (const each of labels.querySelectorAll("[data-line]"))
      each.setAttribute("aria-pressed", String(Number(each.dataset.line) === line));
    renderNumbers();
    zoom.refresh();
  }
  for (const kind of ["pointerover", "focusin"])
    bars.addEventListener(kind, (event) => draw.mark(event.target.closest("li")?.dataset.id));
  for (const kind of ["pointerleave", "focusout"])
    bars.addEventListener(kind, () => draw.mark(null));
  for (const kind of ["click", "focusin"])
    labels.addEventListener(kind, (event) => choose(lineOf(event)));
  labels.addEventListener("pointerover", (event) => {
    if (!zoom.isInside) lookAt(lineOf(event));
  }); // inside a part the names may move
  stage.addEventListener("pointerleave", () => {
    if (pass) lookAt(chosen);
  });

  function isolate(head) {
    view.head = head;
    for (const each of heads.children)
      each.setAttribute("aria-pressed", String(each.dataset.head === String(head ?? "all")));
    render();
    renderNumbers();
  }

  function chooseBlock(layer) {
    block = layer;
    for (const each of blocks.children)
      each.setAttribute("aria-pressed", String(Number(each.dataset.layer) === layer));
    renderNumbers();
  }

  function openBlock(layer) {
    pause();
    if (moment < phases.length) show(2 + 2 * layer);
    chooseBlock(layer);
  }

  function readColors() {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    const triple = (name) => of(name).split(" ").map(Number);
    return {
      paper: of("--raised"),
      rule: of("--rule"),
      soft: of("--soft"),
      blue: of("--blue"),
      orange: of("--orange"),
      gold: of("--gold"),
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
    place = layOut(
      pass,
      width,
      height,
      bottom,
      (24 / 17) * parseFloat(getComputedStyle(labels).fontSize),
    );
    [...blocks.children].forEach((each, layer) => {
      each.textContent = place.block > 60 ? `block ${layer}` : layer;
      each.style.left = `${place.left(layer)}px`;
      each.style.width = `${place.block}px`;
    });
    if (chosen < place.hidden) view.line = chosen = place.hidden + place.rows - 1;
    showText();
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

  function renderNumbers() {
    if (pass && panels.isConnected)
      showNumbers(pass, { block, line: chosen, head: view.head, token: shown.token });
  }

  return {
    /**
     * Show a pass. `token` came after it (null: open); parts in `off` ("layer,head", "layer,mlp")
     * are gray, and `isChanged`: `was` has the rows of `next` without the changes; its tokens can
     * be pressed if `picks`; `plays` starts it ("on": and what follows, unless paused meanwhile),
     * otherwise the whole pass is shown. `line` is chosen (default: the last).
     */
    show(
      described,
      {
        token = null,
        title = "",
        plays = false,
        off = [],
        isChanged = false,
        was = [],
        line = null,
        picks = true,
      } = /** @type {any} */ ({}),
    ) {
      const starts = plays === "on" ? isPlaying : plays;
      pause();
      pass = readPass(described);
      shown = {
        token,
        title,
        isChanged,
        picks,
        was: new Map(was.map(({ id, logprob }) => [id, Math.exp(logprob)])),
      };
      phases = phasesOf(pass);
      view.off = new Set(off);
      view.line = chosen = line ?? pass.count - 1;
      bottom = line === null ? Infinity : line + 1;
      if (starts) zoom.leave();
      if (view.head >= pass.n_head) view.head = null;
      if (block >= pass.n_layer) block = pass.n_layer - 1;
      moment = starts ? 0 : phases.length;
      root.hidden = false; // the picture needs its size
      build();
      renderNumbers();
      if (zoom.isInside) zoom.refresh(true);
      root.dataset.ready = "true";
      if (starts) run(phases.length, plays === "on" ? onEnd : null);
    },
    pause,
    openBlock,
    isolate,
    panels,
    get pass() {
      return pass;
    },
  };
}
