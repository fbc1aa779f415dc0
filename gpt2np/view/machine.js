import { chipOf, lineChipOf, nextChipOf } from "./numbers.js";
import { readPass } from "./pass.js";
import { modelAt, setLetters } from "./scenes.js";
import { drawStage, headColor, layOut, paintStrips, phasesOf } from "./stage.js";
import {
  button,
  clamp,
  dataElement,
  element,
  percent,
  rovingFocus,
  times,
  withSpaces,
} from "./view.js";
import { sentence } from "./words.js";
import { createZoom } from "./zoom.js";

const MOST_BARS = 9;
const KEY = [
  ["␣", "", "a space", -1],
  ["■", "blue", "a number above 0", 0],
  ["■", "orange", "a number below 0", 0],
  ["", "", "heads, a color each", 1],
  ["●", "", "a strong neuron", 2],
]; // signs, and after which moment they are there

/** Build the Machine in `root`; picture.js and embedded.js have its options. */
export function createMachine(root, options = /** @type {any} */ ({})) {
  const { onPick, onSwitch, findPart, source, draw, createGuide } = options;
  let pass = null;
  let shown = /** @type {any} */ ({}); // the token that came, and how
  let phases = [];
  let moment = 0;
  let place = null;
  let strips = null;
  let colors = null;
  let bottom = Infinity; // the line after the last one in sight
  let chosen = 0; // the line that was pressed; the pointer only looks at others
  const view = { line: 0, named: null, pointed: null, off: new Set() };

  const labels = element("div", {
    class: "machine-lines",
    role: "listbox",
    "aria-label": "Tokens, a row each",
  });
  const canvas = element("canvas", { class: "machine-canvas", role: "img" });
  const answerTitle = element("p", { class: "machine-says" });
  const bars = element("ol", { class: "machine-bars" });
  const key = element("ul", { class: "machine-key" });
  for (const [sign, color, means] of KEY)
    key.append(element("li", {}, element("b", { class: color }, sign), ` ${means}`));
  const answer = element("div", { class: "machine-answer" }, answerTitle, bars, key);
  if (draw) answerTitle.after(draw.root);
  const blocks = element("div", { class: "machine-blocks", role: "group", "aria-label": "Blocks" });
  const caption = element("p", { class: "machine-caption", role: "status" });
  const moments = { type: "range", class: "moment", "aria-label": "Moment of the pass" };
  const range = element("input", moments);
  const crumbs = element("nav", { class: "machine-crumbs", "aria-label": "Place in the model" });
  const picture = element(
    "div",
    { class: "machine-picture" },
    element("div", { class: "machine-view" }, canvas),
    blocks,
  );
  const stage = element("div", { class: "machine-stage" }, labels, picture, answer);
  root.classList.add("machine");
  root.append(crumbs, stage, element("div", { class: "transport" }, caption, range));
  const zoom = createZoom({
    ...{ canvas, picture, crumbs, source },
    say(nodes) {
      said = "";
      if (nodes) caption.replaceChildren(...nodes);
      else render();
    },
    model: {
      items: [],
      paint(context) {
        drawStage(context, pass, strips, place, colors, moment, view);
        if (view.isGuided) draw.point(context, pass, place, colors, moment);
      },
      at(x, y) {
        const partIn = (layer) =>
          moment > 1 + 2 * layer &&
          !view.isBare &&
          findPart?.(pass, place, view, layer, x, y, canSwitch());
        return place && modelAt(pass, place, x, y, partIn);
      },
    },
    context: () => ({
      ...{ pass, colors, line: view.line, off: view.off, width: place.width, height: place.height },
      rows:
        place.rows === pass.count
          ? { y: place.y(0) - place.pitch / 2, h: place.pitch * pass.count }
          : { y: 0, h: place.height },
    }),
    lookAt: findPart ? () => {} : hover, // else parts are pressed
    pointAt(arc) {
      if (arc?.part === view.pointed?.part && arc?.key === view.pointed?.key) return;
      view.pointed = arc;
      render();
    },
    mayEnter: () => guide?.stops || !guide?.isWriting,
    setLine: (line) => choose(line),
    press: (part) => onSwitch?.(part),
    onChange(level) {
      guide?.pause();
      if (!level && guide?.stops) choose(pass.count - 1); // the guide's row
    },
  });
  const canSwitch = () => Boolean(onSwitch) && shown.isOwn && !guide?.stops && !guide?.isWriting;
  const isAtEnd = () => moment >= phases.length;

  function refresh() {
    said = "";
    render();
  }

  const guide = createGuide?.({
    ...{ root, range },
    get moment() {
      return moment;
    },
    set moment(value) {
      moment = value;
    },
    phases: () => phases,
    pass: () => pass,
    isOpen: () => shown.isOpen,
    leave: () => zoom.leave(),
    render,
    refresh,
  });
  range.addEventListener("input", () => {
    moment = Number(range.value);
    zoom.leave();
    if (guide) guide.pause();
    else refresh();
  });

  let said = "";

  function render() {
    if (!place || !pass) return; // not laid out yet; the observer of the canvas calls again
    const at = Math.min(phases.length - 1, Math.max(0, Math.ceil(moment) - 1));
    const phase = phases[at];
    const look =
      guide?.stops && phase.layer !== 0
        ? guide.look(phase)
        : phase.kind === "attention" && pass.looks(phase.layer, view.line)[0];
    const isTold = guide?.stops && look?.before !== undefined;
    view.named = (isTold && look) || view.pointed || look || null;
    view.isGuided = Boolean(guide?.stops) && !guide.isResult;
    view.isBare = Boolean(isTold || guide?.isResult); // has one arc
    if (!zoom.isInside) zoom.draw();
    range.value = String(moment);
    const f = clamp(moment - at);
    const now = `${at} ${chosen} ${moment > 0} ${checkpoint()} ${phase.kind === "draw" && draw?.part(f)}`;
    if (now !== said) {
      said = now;
      placeCaption(phase);
      if (!zoom.isInside) caption.replaceChildren(...words(phase));
      KEY.forEach(([, , , from], i) => {
        const age = (guide?.isResult ? 0 : moment) - Number(from);
        key.children[i].hidden = age <= 0 || (guide?.stops && age > 2); // only new ones
      });
      renderAnswer(phase.kind);
      for (const each of blocks.children)
        each.classList.toggle("now", Number(each.dataset.layer) === phase.layer);
    }
    answer.style.setProperty("--grow", phase.kind === "answer" ? f.toFixed(3) : "1");
    draw?.render(phase.kind === "draw" ? f : null);
    root.dataset.moment = moment.toFixed(3);
  }

  /** Place the sentence by its subject. */
  function placeCaption({ kind, layer = kind === "embed" && !shown.isOpen ? -1 : pass.n_layer }) {
    const at = parseInt(view.named?.part ?? layer, 10);
    const isLate = 2 * at >= pass.n_layer;
    const last = place.y(pass.count - 1);
    const from = Math.max(view.named?.key ?? chosen, place.hidden - 1);
    const top = Math.min(last - 40, (last + place.y(from)) / 2 + 36);
    const left = place.left(at + Number(!isLate));
    caption.style.cssText = `--x: ${place.x0 + left}px; --y: ${place.y0 + top}px`;
    caption.classList.toggle("late", isLate);
  }

  function words(phase) {
    if (shown.says && !moment && (shown.isOpen || guide?.stops)) return shown.says;
    if (shown.ends && isAtEnd() && chosen === pass.count - 1) return shown.ends;
    if (guide?.isWriting && !guide.stops)
      return ["The same again for each new token, faster and faster."];
    if (phase.kind === "draw" && chosen === pass.count - 1)
      return draw.says(pass, shown, clamp(moment - phases.length + 1));
    return guide?.says(phase, checkpoint()) ?? sentence(pass, phase, chosen);
  }

  /** The number of blocks that the line has passed, or null before the first. */
  const checkpoint = () => {
    const count = Math.min(pass.n_layer, Math.floor((moment - 1) / 2));
    return count < 1 ? null : count;
  };

  /** The rows of the answer: `p` and, if it was another, `before`; null if not due. */
  function answerRows(kind, isFinal) {
    const shareOf = ({ logprob, sampled }) => (kind === "draw" ? sampled : Math.exp(logprob));
    if (isFinal)
      return pass.next.map((row) => {
        const before = shown.was ? shareOf(shown.was.get(row.id) ?? row) : Math.exp(row.logprob);
        return { id: row.id, p: shareOf(row), before };
      });
    const guess = checkpoint() && pass.guess(checkpoint(), chosen);
    return guess && guess.ids.map((id, i) => ({ id, p: guess.probabilities[i], before: null }));
  }

  function titleOf(kind, isFinal) {
    if (!isFinal)
      return [`A guess after block ${checkpoint() - 1}: what follows `, lineChipOf(pass, chosen)];
    return [kind === "draw" ? shown.title : "What comes next, how likely?"];
  }

  function renderAnswer(kind) {
    const isNext = chosen === pass.count - 1;
    const isFinal = isNext && (kind === "answer" || kind === "draw");
    const rows = answerRows(kind, isFinal);
    answer.classList.toggle("due", Boolean(rows));
    answer.classList.toggle("drawn", kind === "draw" && rows !== null);
    draw?.show(pass, shown.token, shown.drawn);
    answerTitle.replaceChildren(...(rows ? titleOf(kind, isFinal) : (draw?.question ?? [])));
    const room = bars.clientHeight / parseFloat(getComputedStyle(bars).lineHeight);
    const most = guide?.stops && kind !== "answer" ? 3 : MOST_BARS;
    const [likeliest] = shown.was?.keys() ?? []; // before a change
    const kept = isFinal ? [likeliest, shown.instead, shown.token] : []; // stay in sight
    const listed = [...(rows ?? [])]
      .sort((a, b) => kept.lastIndexOf(b.id) - kept.lastIndexOf(a.id))
      .slice(0, Math.max(1, Math.min(most, Math.floor(room))))
      .sort((a, b) => b.p - a.p);
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
        const shareOf = (each) => (each ? percent(each) : "cut off");
        const old = isChanged ? [element("span", { class: "soft" }, `${shareOf(before)} → `)] : [];
        const share = element("span", {}, ...old, dataElement(p, shareOf(p)));
        const more = { "data-id": id, class: isFinal && id === shown.token && "own", p };
        return element("li", more, nameOf(id), share);
      }),
    );
    if (guide?.stops && isFinal) answer.scrollIntoView({ block: "nearest" });
  }

  function build() {
    blocks.replaceChildren(
      ...times(pass.n_layer, (layer) => {
        const open = (event) => {
          event.stopPropagation();
          zoom.open({ kind: "block", layer });
        };
        return button("", open, { "data-layer": layer, "aria-label": `Block ${layer}` });
      }),
    );
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
      const name = `${pass.first + place.hidden} earlier`;
      rows.push(
        place.hidden
          ? button(`▴ ${name}`, () => scroll(2 - place.rows), { class: "earlier" })
          : element("span", { class: "earlier" }, name),
      );
    }
    for (let line = place.hidden; line < place.hidden + place.rows; line++) {
      const word = withSpaces(pass.lineText(line));
      const more = { role: "option", tabindex: line === chosen ? 0 : -1, "data-line": line };
      const isChosen = String(line === chosen);
      const state = { class: line === view.line && "looked", "aria-selected": isChosen };
      rows.push(element("span", { ...more, ...state, title: word }, element("bdi", {}, word)));
    }
    const after = pass.count - place.hidden - place.rows;
    if (after)
      rows.push(button(`▾ ${after} later`, () => scroll(place.rows - 2), { class: "later" }));
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
    if (!guide?.stops && !shown.isOpen) lookAt(line);
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
    const names = ["rule", "soft", "ink", "chance"];
    return {
      isDark: matchMedia("(prefers-color-scheme: dark)").matches,
      ...Object.fromEntries(names.map((name) => [name, of(`--${name}`)])),
      paper: of("--raised"),
      font: getComputedStyle(answerTitle).font,
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
    place = layOut(pass, width, height, bottom, (24 / 17) * size);
    Object.assign(place, { x0: picture.offsetLeft, y0: picture.offsetTop });
    [...blocks.children].forEach((each, layer) => {
      each.textContent = String(layer);
      each.style.left = `${place.left(layer)}px`;
      each.style.width = `${place.block}px`;
    });
    if (chosen < place.hidden) view.line = chosen = place.hidden + place.rows - 1;
    labelLines();
    lineFocus.reset();
    if (zoom.isInside) refresh();
    zoom.refresh();
  }

  function repaint() {
    if (!pass) return;
    colors = readColors();
    const heads = times(Math.min(4, pass.n_head), (head) =>
      Object.assign(element("i", {}, "━"), { style: `color:${headColor(head, colors.isDark)}` }),
    );
    key.children[3].firstChild.replaceChildren(...heads);
    strips = paintStrips(pass, colors);
    resize();
  }

  new ResizeObserver(resize).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  return {
    /**
     * Show a pass, after which `token` came (null: nothing yet); `title` says how it was drawn.
     * Parts in `off` are gray; `was` is `next` with all parts on or before a lesson, `instead` the
     * token that came then. Tokens of the answer can be pressed if `picks`. With `isOpen` or `plays`
     * the picture waits at the start, with the sentence `says`; at the end it says `ends`.
     * `isOwn`: no other `model` was asked.
     */
    show(described, options = /** @type {any} */ ({})) {
      const { token = null, off = [], was, isOpen, plays } = options;
      place = null; // nothing is drawn before all is known
      guide?.stop();
      pass = readPass(described);
      const drawn = described.draw?.id === token ? described.draw.number : null;
      shown = { picks: true, isOwn: true, ...options, token, isOpen, drawn };
      shown.was = was && new Map(was.map((row) => [row.id, row]));
      phases = phasesOf(pass, Boolean(draw));
      view.off = new Set(off);
      view.pointed = null;
      view.line = chosen = pass.count - 1;
      bottom = Infinity;
      if (isOpen || plays || zoom.isToken) zoom.leave();
      moment = isOpen || plays ? 0 : phases.length;
      root.hidden = false; // the picture needs its size
      guide?.update();
      build();
      if (zoom.isInside) zoom.refresh(true);
      root.dataset.ready = "true";
    },
    guide,
    tables: zoom.sheet,
    get model() {
      return shown.model;
    },
    get pass() {
      return pass;
    },
  };
}
