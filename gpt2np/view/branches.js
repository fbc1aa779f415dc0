import { postJson, readTokens, streamCompletion } from "./api.js";
import {
  allIds,
  askNext,
  changes,
  idsOf,
  isTreeOfPrompt,
  offKey,
  partName,
  readSettings,
  sampling,
  state,
  textOf,
} from "./state.js";
import { goTo, renderStory, setBusy, setStatus, showError } from "./story.js";
import { pathTo } from "./tree.js";
import { $, element, visible } from "./view.js";

const N_SHARED = 18; // characters of a shared part: its end
const N_OWN = 48; // of a branch's own part: its beginning
const WIDE = 11; // px of the whole river
const UNDER = 9; // px below the middle of a row, so that lines do not cover the words

function svgElement(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A text's seed, and what was off; "" for a text from a link. */
function nameOf(leaf) {
  const node = pathTo(leaf).findLast(({ draw }) => draw);
  if (!node) return "";
  const without = node.off ? node.off.split(" ").map((part) => `without ${partName(part)}`) : [];
  return [`seed ${node.draw[0]}`, ...without].join(", ");
}

const cut = (text, n, fromEnd) =>
  text.length <= n ? text : fromEnd ? `…${text.slice(-n)}` : `${text.slice(0, n)}…`;

/** The rows of a tree, one for each leaf: the parts of its path that no row above has drawn. */
function rowsOf(root) {
  const rows = [];
  const visit = (start, row, from) => {
    const nodes = [];
    let at = start;
    for (;;) {
      if (at.parent) nodes.push(at);
      if (at.children.length !== 1) break;
      [at] = at.children;
    }
    const part = { nodes, row: row ?? rows.length, count: 0, from };
    if (row === null) rows.push({ parts: [], leaf: null });
    rows[part.row].parts.push(part);
    if (!at.children.length) {
      part.count = 1;
      rows[part.row].leaf = at;
    } else
      for (const [i, child] of at.children.entries())
        part.count += visit(child, i ? null : part.row, part);
    return part.count;
  };
  visit(root, null, null);
  return rows;
}

function partElement(part, isOwn) {
  const text = visible(textOf(part.nodes.map((node) => node.id)));
  const name = part.nodes.length ? cut(text, isOwn ? N_OWN : N_SHARED, !isOwn) : "";
  return element("bdi", { class: isOwn ? "own" : "shared", title: text.slice(0, 400) }, name);
}

function rowElement({ parts, leaf }) {
  const name = nameOf(leaf);
  const nodes = pathTo(leaf);
  const own = parts.at(-1);
  const before = nodes.slice(0, nodes.length - own.nodes.length).slice(-4);
  const common = visible(textOf(before.map((node) => node.id)));
  const more = { class: "branch", onclick: () => open(leaf) };
  const button = element(
    "button",
    { ...more, "aria-current": leaf === state.current ? "true" : null },
    element("span", { class: "hidden" }, common && `After ${common}: `),
    partElement(own, true),
    element("span", { class: "soft", title: name }, name),
  );
  return element("li", {}, ...parts.slice(0, -1).map((part) => partElement(part, false)), button);
}

let rows = [];
const picture = svgElement("svg", { "aria-hidden": "true" });

export function renderBranches() {
  $("branches").hidden = !state.tree || !isTreeOfPrompt();
  if ($("branches").hidden) return;
  rows = rowsOf(state.tree.root);
  const list = $("branch-list");
  if (rows.length < 2) return [list, picture].forEach((each) => each.replaceChildren());
  list.replaceChildren(...rows.map(rowElement));
  lay();
}

/** Put each row where it leaves, and draw the water under the texts. */
function lay() {
  const list = $("branch-list");
  if (!list.children.length || !list.clientWidth) return;
  const ends = new Map(); // part → x of its end and y of its row
  const paths = [];
  const unit = WIDE / rows[0].parts[0].count;
  rows.forEach(({ parts, leaf }, i) => {
    const item = list.children[i];
    const from = parts[0].from && ends.get(parts[0].from);
    item.style.paddingLeft = from ? `${from.x + 28}px` : "";
    const y = item.offsetTop + item.offsetHeight / 2 + UNDER;
    const isCurrent = leaf === state.current;
    if (from)
      paths.push({
        d: `M${from.x} ${from.y}C${from.x + 18} ${from.y} ${from.x + 8} ${y} ${from.x + 28} ${y}`,
        width: parts[0].count * unit,
        isCurrent,
      });
    parts.forEach((part, k) => {
      const { offsetLeft: x, offsetWidth: width } = item.children[k];
      ends.set(part, { x: x + (part.nodes.length ? width : 0), y });
      paths.push({
        d: `M${x} ${y}H${x + width + (k < parts.length - 1 ? 8 : 0)}`,
        width: part.count * unit,
        isCurrent,
      });
    });
  });
  picture.setAttribute("width", Math.max(...[...ends.values()].map(({ x }) => x)));
  picture.setAttribute("height", list.offsetHeight);
  picture.replaceChildren(
    ...paths.map(({ d, width, isCurrent }) =>
      svgElement("path", {
        d,
        "stroke-width": Math.max(1.5, width),
        class: isCurrent ? "current" : "",
      }),
    ),
  );
}

async function open(leaf) {
  if (state.running) return;
  Object.assign(state, { current: leaf, intact: null });
  state.off = new Set(leaf.off ? leaf.off.split(" ") : []);
  await loadNumbers();
  await goTo(leaf, state.tree.ids.length);
}

/** Ask for the probabilities of tokens that came from an address, which has only their ids. */
export async function loadNumbers() {
  const path = pathTo(state.current);
  const isOpen = (node) => node.logprob === undefined;
  const n = state.model.n_positions; // a text may have one more token: the last one drawn
  if (path.some((node) => isOpen(node) && !node.off)) {
    const ids = allIds().slice(0, n);
    const more = { echo: true, max_tokens: 0, logprobs: 0 };
    const body = { model: state.model.id, prompt: ids, ...more };
    const { choices } = await postJson("v1/completions", body);
    const logprobs = choices[0].logprobs.token_logprobs.slice(state.tree.ids.length);
    path.forEach((node, i) => isOpen(node) && !node.off && (node.logprob = logprobs[i]));
  }
  for (const node of path.filter(isOpen)) {
    const off = new Set(node.off ? node.off.split(" ") : []);
    const context = idsOf(node.parent); // an echo of the prompt can't have parts off
    const { next } = await askNext(context, node.id, { draw: {}, off });
    node.logprob = next.find(({ id }) => id === node.id).logprob;
  }
}

async function writeBranches() {
  const { seed, max_tokens, temperature } = readSettings();
  const n = 5; // texts at once
  if (!temperature) return setStatus("At temperature 0 all texts would be the same.");
  if (state.running) return;
  const path = pathTo(state.current);
  const start = path[(state.pinned ?? 0) - state.tree.ids.length - 1] ?? state.tree.root;
  const controller = new AbortController();
  setBusy(controller);
  setStatus(`Writing ${n} texts from here…`);
  const ends = Array(n).fill(start);
  const lengths = ends.map(() => 0);
  const body = { model: state.model.id, prompt: idsOf(start), max_tokens, seed, n };
  const fields = { ...body, ...sampling(), ...changes() };
  try {
    for await (const { choices } of streamCompletion(fields, controller.signal)) {
      const i = choices[0].index;
      for (const token of readTokens(choices[0])) {
        const draw = [seed + i, lengths[i]++];
        ends[i] = state.tree.add(ends[i], { ...token, draw, off: offKey() });
      }
    }
    setStatus(`${n} texts from the same point.`);
  } catch (error) {
    showError(error);
  }
  Object.assign(state, { current: ends[0], intact: null });
  setBusy(null);
  renderStory();
  renderBranches();
}

export function startBranches() {
  $("branch-list").before(picture);
  new ResizeObserver(lay).observe($("branch-list"));
  $("river-run").addEventListener("click", writeBranches);
}
