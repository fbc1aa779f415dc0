// Going into the picture: from the model to one number. The path of levels, what each needs, and how the picture changes.

import { table, tableRow } from "./numbers.js";
import { blockScene, headScene, matrixScene, neuronScene, normScene, numberScene, scoreScene, termScene, tokenScene } from "./scenes.js";
import { dataElement, element, formatNumber, rovingFocus, withSpaces } from "./view.js";

const SCENES = { block: blockScene, head: headScene, score: scoreScene, number: numberScene, norm: normScene, neuron: neuronScene, token: tokenScene, matrix: matrixScene, term: termScene };
const DESCRIBED = ["block", "head", "token"]; // levels that the description has numbers for
const SECONDS = 0.3;
const LEAST_WHEEL = 60;

/** The levels above a level, as a path from the model: a number can be reached without walking. */
export function pathOf(level) {
  const { kind, layer, head, key } = level;
  const up = { head: { kind: "block", layer }, score: { kind: "head", layer, head }, number: { kind: "score", layer, head, key }, norm: { kind: "block", layer }, neuron: { kind: "block", layer } }[kind];
  return up ? [...pathOf(up), level] : [level];
}

/** What the scene of a level needs beyond the description, from `source`; {} without a source. What `source` lacks is missing. */
async function loadLevel(level, pass, line, source) {
  if (!source) return {};
  const { kind, layer, head, what, i, neuron } = level;
  const at = `blocks.${layer}.`;
  const size = pass.n_embd / pass.n_head;
  const points = async (names) => {
    const found = await source.points(pass, Object.values(names));
    return Object.fromEntries(Object.entries(names).map(([short, name]) => [short, found[name]]));
  };
  const before = layer ? `blocks.${layer - 1}.resid` : "embed";
  if (kind === "block") return points({ before, attention: `${at}attn.out`, middle: `${at}resid_mid`, mlp: `${at}mlp.out`, after: `${at}resid`, act: `${at}mlp.act` });
  if (kind === "head" || kind === "score") {
    const found = await points({ q: `${at}attn.q`, k: `${at}attn.k`, v: `${at}attn.v`, z: `${at}attn.z` });
    if (kind === "score" && !found.q) throw new Error("To stay small, this file holds the queries and keys of one block only, that of its first view.");
    return found;
  }
  if (kind === "number") {
    const column = (["q", "k", "v"].indexOf(what) * pass.n_head + head) * size + i;
    const name = `h.${layer}.attn.c_attn`;
    const [numbers, weights, [bias]] = await Promise.all([points({ ln_1: `${at}ln_1`, q: `${at}attn.q`, k: `${at}attn.k` }), source.column(pass, `${name}.weight`, column), source.column(pass, `${name}.bias`, column)]);
    return { ...numbers, column: weights, bias };
  }
  if (kind === "norm") {
    const [numbers, weight, bias] = await Promise.all([points({ before }), ...["weight", "bias"].map((name) => source.row(pass, `h.${layer}.ln_1.${name}`, 0))]);
    return { ...numbers, weight, bias };
  }
  if (kind === "neuron") {
    const [numbers, weights] = await Promise.all([points({ ln_2: `${at}ln_2`, act: `${at}mlp.act` }), source.neuron(pass, layer, neuron)]);
    return { ...numbers, ...weights };
  }
  if (kind === "token") {
    const [id, position] = [pass.lineIds[line], pass.first + line];
    const [wte, wpe, nearest] = await Promise.all([source.row(pass, "wte.weight", id), source.row(pass, "wpe.weight", position), source.nearest(id)]);
    return { wte, wpe, nearest };
  }
  if (kind === "matrix") return { tile: await source.weights({ name: level.name, rows: level.rows, columns: level.columns, cells: 96 }) };
  return {};
}

/** The level that a text names: "block 3", "block 3 head 2", "block 3 norm", "block 3 neuron 17", "token", a weight's name; or null. */
export function parseLevel(text, pass) {
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
 * Let the user go into a picture. `host` has `canvas`, `picture` (its element), `crumbs`, `say(nodes)`, `paintModel(context)`,
 * `modelItems()`, `modelAt(x, y)`, `context()` (of the scenes: pass, line, colors, width, height, off), `setLine(line)`, `isStill()`, `source`,
 * `actions(level)` (buttons beside the path) and `onChange(level)`.
 */
export function createZoom(host) {
  const { canvas, picture, crumbs } = host;
  let path = []; // of levels; empty: the model
  let scene = null;
  let data = {};
  let lineShown = null; // of the data
  let loads = 0;
  let frame = 0;
  const layer = element("div", { class: "machine-targets", role: "group", "aria-label": "Parts to go into" });
  const readout = element("p", { class: "machine-tip", hidden: true });
  const go = element("input", { type: "text", placeholder: "go to block 3 head 2", "aria-label": "Go to a part, such as block 3 head 2, block 3 neuron 17 or token", size: 16 });
  const sheet = element("details", { class: "zoom-table", hidden: true }, element("summary", {}, "These numbers as a table"));
  picture.append(layer, readout);
  picture.tabIndex = -1; // keeps the focus where there is nothing to go into

  const places = () => [{ name: "the model", to: [] }, ...path.map((level, i) => ({ name: nameOf(level), to: path.slice(0, i + 1) }))];

  function nameOf({ kind, layer, head, key, what, i, neuron, name }) {
    const { pass, line } = host.context();
    const text = (at = line) => withSpaces(pass.lineText(Math.min(at, line)));
    return { block: `block ${layer}`, head: `head ${head}`, score: `${text(line)} looks at ${text(key)}`, number: `${what}${i}`, norm: "layer norm", neuron: `neuron ${neuron}`, token: text(line), matrix: name, term: `number ${i}` }[kind];
  }
  const contextFor = () => ({ ...host.context(), data, isThere });
  /** Whether there are numbers for a level: those of the description, or of the source. */
  const isThere = (level) => DESCRIBED.includes(level.kind) || Boolean(host.source?.has(level));

  function build() {
    const shown = contextFor();
    const level = path.at(-1);
    shown.scale = { size: shown.pass.n_embd / shown.pass.n_head, factor: (at) => shown.pass.described.scales[at] };
    scene = level ? SCENES[level.kind](level, shown) : null;
    host.say(scene?.says ?? null);
    showCrumbs();
    showItems();
    sheet.hidden = !scene;
    picture.dataset.level = level?.kind ?? "model";
    picture.classList.toggle("inside", Boolean(scene));
  }

  function showCrumbs() {
    const all = places();
    crumbs.replaceChildren(
      element("ol", {}, ...all.map(({ name, to }, i) => element("li", {}, i === all.length - 1 ? element("span", { "aria-current": "location" }, name) : element("button", { type: "button", onclick: () => enter(to, null, true) }, name)))),
      ...host.actions(path.at(-1) ?? null),
      element("form", { onsubmit: (event) => { event.preventDefault(); jump(go.value); } }, go));
  }

  function showItems() {
    const items = (scene ? scene.items : host.modelItems()).filter(({ to }) => !to || isThere(to));
    const focused = [...layer.children].indexOf(document.activeElement);
    layer.replaceChildren(...items.map((item) => {
      const { x, y, w, h, text = "", to, name = "", label = null, value } = item;
      const made = element(to ? "button" : "span", { class: `target ${name}`, ...(to && { type: "button", "aria-label": label, tabindex: -1 }), ...(value !== undefined && { "data-value": value }) }, text);
      Object.assign(made.style, { left: `${x}px`, top: `${y}px`, width: w ? `${w}px` : "auto", height: `${h}px` });
      if (to) made.addEventListener("click", (event) => { event.stopPropagation(); if (event.detail === 0 || item.name === "link" || !enterAt(event)) enterFrom(to, item); });
      return made;
    }));
    focus.reset();
    if (focused >= 0) (layer.children[focused]?.matches("button") ? layer.children[focused] : firstItem()).focus({ preventScroll: true });
  }

  const focus = rovingFocus(layer, "button");
  const enterFrom = (to, box) => enter(box?.isSide && path.length ? [...path.slice(0, -1), to] : to.kind === "matrix" || path.length ? [...path, to] : pathOf(to), box);

  /** Show another path: the picture grows out of `box`, or shrinks into the place it came from. */
  async function enter(next, box = null, isOut = false) {
    const mine = ++loads;
    const shown = host.context();
    const level = next.at(-1);
    if (level && !isThere(level)) {
      host.say(["This page has no numbers beyond this point; the playground of gpt2np serve has them."]);
      return;
    }
    picture.setAttribute("aria-busy", "true");
    const isDescribed = next !== path && (!level || DESCRIBED.includes(level.kind));
    if (isDescribed) change(next, {}, box, isOut); // at once, with the description's rounded numbers
    let loaded = {};
    try {
      loaded = level ? await loadLevel(level, shown.pass, shown.line, host.source) : {};
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
      build();
      draw();
    }
  }

  const firstItem = () => layer.querySelector("button.current") ?? layer.querySelector("button") ?? picture;

  function change(next, loaded, box, isOut) {
    const hadFocus = picture.contains(document.activeElement) || crumbs.contains(document.activeElement);
    const before = snapshot();
    path = next;
    data = loaded;
    lineShown = host.context().line;
    sheet.open = false;
    readout.hidden = true;
    build();
    host.onChange(path.at(-1) ?? null);
    if (hadFocus) firstItem().focus({ preventScroll: true });
    morph(before, box, isOut);
  }

  function out() {
    if (path.length) enter(path.slice(0, -1), null, true);
  }

  function jump(text) {
    const { pass } = host.context();
    const weight = /^\s*(h\.\d+\.|wte|wpe|ln_f|lm_head)/.test(text) && text.trim();
    const level = weight ? null : parseLevel(text, pass);
    if (level) enter(pathOf(level));
    else if (weight) enterWeight(weight);
    else host.say([`There is no “${text}”. Try block 0 head 1, block 0 neuron 5, token, or the name of a weight, such as h.0.mlp.c_fc.weight.`]);
  }

  async function enterWeight(name) {
    const { pass } = host.context();
    const shapes = [["wte.weight", [pass.vocab_size, pass.n_embd]], ["attn.c_attn.weight", [pass.n_embd, 3 * pass.n_embd]], ["attn.c_proj.weight", [pass.n_embd, pass.n_embd]], ["c_fc.weight", [pass.n_embd, pass.n_inner]], ["mlp.c_proj.weight", [pass.n_inner, pass.n_embd]], ["c_fc.bias", [1, pass.n_inner]], ["c_attn.bias", [1, 3 * pass.n_embd]]];
    const [rows, columns] = shapes.find(([end]) => name.endsWith(end))?.[1] ?? [1, pass.n_embd];
    await enter([{ kind: "matrix", name, rows: [0, rows], columns: [0, columns] }]);
  }

  // ---- the picture

  function snapshot() {
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [canvas.width, canvas.height];
    copy.getContext("2d").drawImage(canvas, 0, 0);
    return copy;
  }

  function paint(context) {
    const { width, height } = host.context();
    context.clearRect(0, 0, width, height);
    if (scene) scene.paint(context);
    else host.paintModel(context);
  }

  function draw() {
    const context = canvas.getContext("2d");
    const scale = canvas.width / host.context().width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.globalAlpha = 1;
    paint(context);
  }

  /** End a change of pictures, wherever it is. */
  function rest() {
    cancelAnimationFrame(frame);
    layer.classList.remove("moving");
  }

  /** Let the new picture grow out of a box of the old one, or the old one shrink into the middle of the new one. */
  function morph(before, box, isOut) {
    rest();
    const { width, height } = host.context();
    draw();
    if (host.isStill()) return;
    const after = snapshot();
    const small = box ?? { x: width * 0.3, y: height * 0.3, w: width * 0.4, h: height * 0.4 };
    const whole = { x: 0, y: 0, w: width, h: height };
    const start = performance.now();
    layer.classList.add("moving");
    const step = (now) => {
      const t = Math.min(1, Math.max(0, now - start) / 1000 / SECONDS);
      const f = t * t * (3 - 2 * t);
      mixPictures(canvas.getContext("2d"), isOut ? after : before, isOut ? before : after, small, whole, isOut ? 1 - f : f);
      if (t < 1) frame = requestAnimationFrame(step);
      else {
        layer.classList.remove("moving");
        draw();
      }
    };
    frame = requestAnimationFrame(step);
  }

  // ---- pointer, wheel, pinch, keys

  const pointOf = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };

  const at = (event) => (scene ? scene.at(...pointOf(event)) : host.modelAt(...pointOf(event)));

  function point(event) {
    const found = at(event);
    readout.hidden = !found?.says;
    if (found?.says) readout.replaceChildren(...found.says);
    const [x] = pointOf(event);
    readout.classList.toggle("left", x > host.context().width / 2);
    canvas.style.cursor = layer.style.cursor = found?.to ? "zoom-in" : "default";
  }

  function enterAt(event) {
    const found = at(event);
    if (!found?.to) return false;
    if (found.line !== undefined) host.setLine(found.line);
    if (scene) enter([...path, found.to], found.box);
    else enterFrom(found.to, found.box);
    return true;
  }

  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => { readout.hidden = true; });
  picture.addEventListener("click", (event) => { if (event.detail) enterAt(event); });
  picture.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !path.length) return;
    event.stopPropagation();
    out();
  });

  let turned = 0;
  let rests = 0; // no second step by the same turn of the wheel before this time
  picture.addEventListener("wheel", (event) => {
    const isMeant = event.ctrlKey || scene || picture.contains(document.activeElement);
    if (!isMeant || (!scene && event.deltaY > 0)) return; // the page scrolls
    event.preventDefault();
    if (event.timeStamp < rests) return;
    turned = Math.sign(event.deltaY) === Math.sign(turned) ? turned + event.deltaY : event.deltaY;
    if (Math.abs(turned) < (event.ctrlKey ? 8 : LEAST_WHEEL)) return;
    rests = event.timeStamp + 450;
    turnTo(event, turned < 0);
    turned = 0;
  }, { passive: false });

  function turnTo(event, isIn) {
    if (isIn) enterAt(event);
    else out();
  }

  const fingers = new Map();
  let spread = 0;
  const distance = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY); };
  picture.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") fingers.set(event.pointerId, event);
    if (fingers.size === 2) spread = distance();
  });
  picture.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event);
    if (fingers.size !== 2 || !spread) return;
    const factor = distance() / spread;
    if (factor > 0.75 && factor < 1.35) return;
    spread = 0; // once for each pinch
    const [a, b] = [...fingers.values()];
    turnTo({ clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 }, factor > 1);
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) picture.addEventListener(kind, (event) => fingers.delete(event.pointerId));

  sheet.addEventListener("toggle", () => {
    if (!sheet.open || !scene) return;
    const { caption, head, rows } = scene.table();
    const cell = (value) => (typeof value === "number" && !Number.isInteger(value) ? dataElement(value, formatNumber(value, 5)) : String(value));
    sheet.replaceChildren(sheet.firstChild, table(caption, head, rows.map(([first, ...rest]) => tableRow({}, cell(first), ...rest.map(cell)))));
  });

  return {
    draw, sheet,
    /** Go into a level with the levels above it. */
    open: (level) => enter(pathOf(level)),
    /** Leave for the model at once, without a picture in between. */
    leave() { loads++; rest(); if (path.length) { path = []; data = {}; build(); host.onChange(null); } },
    /** Show the same place again, for another line, size or pass. */
    async refresh(isNew = false) {
      rest();
      if (isNew || (path.at(-1)?.kind === "token" && host.context().line !== lineShown)) await enter(path, null, true);
      else { build(); draw(); }
    },
    get isInside() { return path.length > 0; },
  };
}

/** Mix the outer picture, of which `small` fills more and more, with the inner one, which fills that part. */
function mixPictures(context, outer, inner, small, whole, f) {
  const mix = (name) => small[name] + (whole[name] - small[name]) * f;
  const [x, y, w, h] = [mix("x"), mix("y"), mix("w"), mix("h")];
  const [zoomX, zoomY] = [w / small.w, h / small.h];
  context.globalAlpha = 1;
  context.clearRect(0, 0, whole.w, whole.h);
  context.globalAlpha = 1 - f;
  context.drawImage(outer, x - small.x * zoomX, y - small.y * zoomY, whole.w * zoomX, whole.h * zoomY);
  context.globalAlpha = f;
  context.drawImage(inner, x, y, w, h);
  context.globalAlpha = 1;
}
