// Going into the picture: from the model to one number. The path of levels, what each needs, and how the picture changes.

import { table, tableRow } from "./numbers.js";
import { blockScene, columnOf, headScene, matrixScene, neuronScene, normScene, numberScene, scoreScene, termScene, tokenScene } from "./scenes.js";
import { button, dataElement, element, formatNumber, rovingFocus, withSpaces } from "./view.js";

const SCENES = { block: blockScene, head: headScene, score: scoreScene, number: numberScene, norm: normScene, neuron: neuronScene, token: tokenScene, matrix: matrixScene, term: termScene };
const DESCRIBED = ["block", "head", "token"]; // levels that the description has numbers for
const GROWTH = 300; // ms: a picture grows out of a part of the other one
const LEAST_WHEEL = 60;

/** The levels above a level, as a path from the model: a number can be reached without walking. */
function pathOf(level) {
  const { kind, layer, head, key } = level;
  const up = { head: { kind: "block", layer }, score: { kind: "head", layer, head }, number: { kind: "score", layer, head, key }, norm: { kind: "block", layer }, neuron: { kind: "block", layer } }[kind];
  return up ? [...pathOf(up), level] : [level];
}

/** What the scene of a level needs beyond the description, from `source`; {} without a source. What `source` lacks is missing. */
async function loadLevel(level, pass, line, source) {
  if (!source) return {};
  const { kind, layer, head, what, i, neuron, name, rows, columns } = level;
  const at = `blocks.${layer}.`;
  const points = async (names) => {
    const found = await source.points(pass, Object.values(names));
    return Object.fromEntries(Object.entries(names).map(([short, point]) => [short, found[point]]));
  };
  const before = layer ? `blocks.${layer - 1}.resid` : "embed";
  if (kind === "block") return points({ before, attention: `${at}attn.out`, middle: `${at}resid_mid`, mlp: `${at}mlp.out`, after: `${at}resid`, act: `${at}mlp.act` });
  if (kind === "head" || kind === "score") {
    const found = await points({ q: `${at}attn.q`, k: `${at}attn.k`, v: `${at}attn.v`, z: `${at}attn.z` });
    if (kind === "score" && !found.q) throw new Error("To stay small, this file holds the queries and keys of one block only, that of its first view.");
    return found;
  }
  if (kind === "number") {
    const index = columnOf(pass, what, head, i);
    const [numbers, column, [bias]] = await Promise.all([points({ ln_1: `${at}ln_1`, q: `${at}attn.q`, k: `${at}attn.k` }), ...["weight", "bias"].map((part) => source.column(`h.${layer}.attn.c_attn.${part}`, index))]);
    return { ...numbers, column, bias };
  }
  if (kind === "norm") {
    const [numbers, weight, bias] = await Promise.all([points({ before }), ...["weight", "bias"].map((part) => source.row(`h.${layer}.ln_1.${part}`, 0))]);
    return { ...numbers, weight, bias };
  }
  if (kind === "neuron") {
    const [numbers, weights] = await Promise.all([points({ ln_2: `${at}ln_2`, act: `${at}mlp.act` }), source.neuron(layer, neuron)]);
    return { ...numbers, ...weights };
  }
  if (kind === "token") {
    const id = pass.lineIds[line];
    const [wte, wpe, nearest] = await Promise.all([source.row("wte.weight", id), source.row("wpe.weight", pass.first + line), source.nearest(id)]);
    return { wte, wpe, nearest };
  }
  return kind === "matrix" ? { part: await source.weights({ name, rows, columns, cells: 96 }) } : {};
}

/** The level that a text names: "block 3", "block 3 head 2", "block 3 norm", "block 3 neuron 17", "token", a weight's name; or null. */
function parseLevel(text, pass) {
  const number = (word) => { const found = new RegExp(`${word}\\s*(\\d+)`, "i").exec(text); return found ? Number(found[1]) : null; };
  const [layer, head, neuron] = [number("block"), number("head"), number("neuron")];
  if (/^token$/i.test(text.trim())) return { kind: "token" };
  if (layer === null || layer >= pass.n_layer) return null;
  if (/\bnorm\b/i.test(text)) return { kind: "norm", layer };
  if (head !== null) return head < pass.n_head ? { kind: "head", layer, head } : null;
  if (neuron !== null) return neuron < pass.n_inner ? { kind: "neuron", layer, neuron } : null;
  return { kind: "block", layer };
}

/**
 * Let the user go into a picture. `host` has `canvas`, `picture` (its element), `crumbs`, `say(nodes)`, `model` (the scene of the whole model),
 * `context()` (of the scenes: pass, line, colors, width, height, off), `lookAt(line)` and `setLine(line)`, `isStill()`, `source`,
 * `actions(level)` (buttons beside the path) and `onChange(level)`.
 */
export function createZoom(host) {
  const { canvas, picture, crumbs } = host;
  let path = []; // of levels; empty: the model
  let scene = host.model;
  let data = {};
  let lineShown = null; // of the data
  let loads = 0;
  const layer = element("div", { class: "machine-targets", role: "group", "aria-label": "Parts to go into" });
  const tip = element("p", { class: "machine-tip", hidden: true });
  const go = element("input", { type: "text", placeholder: "block 3 head 2", "aria-label": "Go to a part, such as block 3 head 2, block 3 neuron 17 or token", size: 16 });
  const sheet = element("details", { class: "zoom-table", hidden: true }, element("summary", {}, "These numbers as a table"));
  picture.append(layer, tip);
  picture.tabIndex = -1; // keeps the focus where there is nothing to go into

  function nameOf({ kind, layer, head, key, what, i, neuron, name }) {
    const { pass, line } = host.context();
    const text = (at = line) => withSpaces(pass.lineText(Math.min(at, line)));
    return { block: `block ${layer}`, head: `head ${head}`, score: `${text()} looks at ${text(key)}`, number: `${what}${i}`, norm: "layer norm", neuron: `neuron ${neuron}`, token: text(), matrix: name, term: `number ${i}` }[kind];
  }
  /** Whether there are numbers for a level: those of the description, or of the source. */
  const isThere = (level) => DESCRIBED.includes(level.kind) || Boolean(host.source?.has(level));

  function build() {
    const level = path.at(-1);
    scene = level ? SCENES[level.kind](level, { ...host.context(), data, isThere }) : host.model;
    host.say(scene.says);
    showCrumbs();
    showItems();
    sheet.hidden = !level;
    picture.dataset.level = level?.kind ?? "model";
    picture.classList.toggle("inside", Boolean(level));
  }

  function showCrumbs() {
    const places = [{ name: "the model", to: [] }, ...path.map((level, i) => ({ name: nameOf(level), to: path.slice(0, i + 1) }))];
    crumbs.replaceChildren(
      element("ol", {}, ...places.map(({ name, to }) => element("li", {}, to.length === path.length ? element("span", { "aria-current": "location" }, name) : button(name, () => enter(to, null, true))))),
      ...host.actions(path.at(-1)),
      element("form", { onsubmit: (event) => { event.preventDefault(); jump(go.value); } }, go));
  }

  function showItems() {
    const focused = [...layer.children].indexOf(document.activeElement);
    layer.replaceChildren(...scene.items.filter(({ to }) => !to || isThere(to)).map((item) => {
      const { x, y, w, h, text = "", to, name = "", label, value } = item;
      const press = (event) => { event.stopPropagation(); if (event.detail === 0 || name === "link" || !enterAt(event)) enterFrom(to, item); };
      const made = to ? button(text, press, { class: `target ${name}`, "aria-label": label, tabindex: -1 }) : element("span", { class: `target ${name}`, "data-value": value }, text);
      Object.assign(made.style, { left: `${x}px`, top: `${y}px`, width: w ? `${w}px` : "auto", height: `${h}px` });
      return made;
    }));
    focus.reset();
    if (focused >= 0) (layer.children[focused]?.matches("button") ? layer.children[focused] : firstItem()).focus({ preventScroll: true });
  }

  const focus = rovingFocus(layer, "button");
  const firstItem = () => layer.querySelector("button.current") ?? layer.querySelector("button") ?? picture;
  const enterFrom = (to, box) => enter(box?.isSide && path.length ? [...path.slice(0, -1), to] : to.kind === "matrix" || path.length ? [...path, to] : pathOf(to), box);

  /** Show another path: the picture grows out of `box`, or shrinks into the place it came from. */
  async function enter(next, box = null, isOut = false) {
    const mine = ++loads;
    const { pass, line } = host.context();
    const level = next.at(-1);
    if (level && !isThere(level)) return host.say(["This page has no numbers beyond this point; the playground of gpt2np serve has them."]);
    picture.setAttribute("aria-busy", "true");
    const isDescribed = next !== path && (!level || DESCRIBED.includes(level.kind));
    if (isDescribed) change(next, {}, box, isOut); // at once, with the description's rounded numbers
    let loaded = {};
    try {
      loaded = level ? await loadLevel(level, pass, line, host.source) : {};
    } catch (error) {
      if (mine === loads) host.say([error.message]);
      return;
    } finally {
      if (mine === loads) picture.removeAttribute("aria-busy");
    }
    if (mine !== loads) return;
    if (!isDescribed) change(next, loaded, box, isOut);
    else if (level && host.source) {
      data = loaded;
      sheet.open = false;
      show();
    }
  }

  function show() {
    build();
    draw();
  }

  function change(next, loaded, box, isOut) {
    const hadFocus = picture.contains(document.activeElement) || crumbs.contains(document.activeElement);
    const before = snapshot();
    path = next;
    data = loaded;
    lineShown = host.context().line;
    sheet.open = false;
    tip.hidden = true;
    build();
    host.onChange(path.at(-1));
    if (hadFocus) firstItem().focus({ preventScroll: true });
    draw();
    if (!host.isStill()) morph(before, box, isOut);
  }

  function out() {
    if (path.length) enter(path.slice(0, -1), null, true);
  }

  function jump(text) {
    const { pass } = host.context();
    const weight = /^\s*(h\.\d+\.|wte|wpe|ln_f|lm_head)/.test(text) && text.trim();
    const level = weight ? { kind: "matrix", name: weight } : parseLevel(text, pass);
    if (level) enter(pathOf(level));
    else host.say([`There is no “${text}”. Try block 0 head 1, block 0 neuron 5, token, or the name of a weight, such as h.0.mlp.c_fc.weight.`]);
  }

  // ---- the picture

  function snapshot() {
    const copy = element("canvas", { class: "machine-copy", width: canvas.width, height: canvas.height });
    copy.getContext("2d").drawImage(canvas, 0, 0);
    return copy;
  }

  function draw() {
    const context = canvas.getContext("2d");
    const { width, height } = host.context();
    const scale = canvas.width / width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.globalAlpha = 1;
    context.clearRect(0, 0, width, height);
    scene.paint(context);
  }

  /** Let the new picture grow out of a box of the old one, a copy; or the old one shrink into a box of the new one. */
  function morph(copy, box, isOut) {
    const { width, height } = host.context();
    const { x, y, w, h } = box ?? { x: width * 0.3, y: height * 0.3, w: width * 0.4, h: height * 0.4 };
    const [outer, inner] = isOut ? [canvas, copy] : [copy, canvas];
    const move = (element, transform, opacity) => element.animate({ transform, opacity }, { duration: GROWTH, easing: "ease-in-out", direction: isOut ? "reverse" : "normal" });
    const around = (left, top, across, down) => `translate(${left}px, ${top}px) scale(${across}, ${down}) translate(${-x}px, ${-y}px)`;
    for (const old of canvas.parentElement.querySelectorAll(".machine-copy")) old.remove();
    canvas[isOut ? "after" : "before"](copy);
    move(outer, [around(x, y, 1, 1), around(0, 0, width / w, height / h)], [1, 0]);
    move(inner, [`translate(${x}px, ${y}px) scale(${w / width}, ${h / height})`, "translate(0) scale(1)"], [0, 1]);
    layer.animate({ opacity: [0, 0, 1] }, GROWTH).onfinish = () => copy.remove();
  }

  // ---- pointer, wheel, pinch, keys

  const at = (event) => {
    const { left, top } = canvas.parentElement.getBoundingClientRect();
    return scene.at(event.clientX - left, event.clientY - top);
  };

  function point(event) {
    const found = at(event);
    if (!path.length) host.lookAt(found?.line ?? null);
    tip.hidden = !found?.says;
    tip.replaceChildren(...(found?.says ?? []));
    const { left, top, width, height } = picture.getBoundingClientRect();
    tip.classList.toggle("left", event.clientX > left + width / 2); // never over what it is about
    tip.classList.toggle("above", event.clientY > top + height / 2);
    canvas.style.cursor = layer.style.cursor = found?.to ? "zoom-in" : "default";
  }

  function enterAt(event) {
    const found = at(event);
    if (found?.line !== undefined) host.setLine(found.line);
    if (found?.to) enterFrom(found.to, found.box);
    return Boolean(found?.to);
  }

  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });
  picture.addEventListener("click", (event) => { if (event.detail) enterAt(event); });
  picture.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !path.length) return;
    event.stopPropagation();
    out();
  });

  let turned = 0;
  let rests = 0; // no second step by the same turn of the wheel before this time
  picture.addEventListener("wheel", (event) => {
    const isMeant = event.ctrlKey || path.length || picture.contains(document.activeElement);
    if (!isMeant || (!path.length && event.deltaY > 0)) return; // the page scrolls
    event.preventDefault();
    if (event.timeStamp < rests) return;
    turned = Math.sign(event.deltaY) === Math.sign(turned) ? turned + event.deltaY : event.deltaY;
    if (Math.abs(turned) < (event.ctrlKey ? 8 : LEAST_WHEEL)) return;
    rests = event.timeStamp + 450;
    turnTo(event, turned < 0);
    turned = 0;
  }, { passive: false });

  const turnTo = (event, isIn) => (isIn ? enterAt(event) : out());

  const fingers = new Map();
  let spread = 0;
  const distance = ([a, b]) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  picture.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") fingers.set(event.pointerId, event);
    if (fingers.size === 2) spread = distance([...fingers.values()]);
  });
  picture.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event);
    if (fingers.size !== 2 || !spread) return;
    const [a, b] = [...fingers.values()];
    const factor = distance([a, b]) / spread;
    if (factor > 0.75 && factor < 1.35) return;
    spread = 0; // once for each pinch
    turnTo({ clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 }, factor > 1);
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) picture.addEventListener(kind, (event) => fingers.delete(event.pointerId));

  sheet.addEventListener("toggle", () => {
    if (!sheet.open || !path.length) return;
    const { caption, head, rows } = scene.table();
    const cell = (value) => (typeof value === "number" && !Number.isInteger(value) ? dataElement(value, formatNumber(value, 5)) : String(value));
    sheet.replaceChildren(sheet.firstChild, table(caption, head, rows.map((row) => tableRow({}, ...row.map(cell)))));
  });

  return {
    draw, sheet,
    /** Go into a level with the levels above it. */
    open: (level) => enter(pathOf(level)),
    /** Leave for the model at once, without a picture in between. */
    leave() { loads++; if (path.length) { path = []; data = {}; build(); host.onChange(); } },
    /** Show the same place again, for another line, size or pass. */
    async refresh(isNew = false) {
      if (isNew || (path.at(-1)?.kind === "token" && host.context().line !== lineShown)) await enter(path, null, true);
      else show();
    },
    get isInside() { return path.length > 0; },
  };
}
