// The texts written from one prompt as a river: what they share is drawn once, and each branch
// leaves where it differs.

import { pathTo } from "./tree.js";
import { counted, element, visible } from "./view.js";

const N_SHARED = 18; // characters of a shared part: its end
const N_OWN = 48; // of a branch's own part: its beginning
const WIDE = 11; // px of the whole river
const UNDER = 9; // px below the middle of a row, so that lines do not cover the words

function svgElement(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const NAMES = {
  from: "from",
  temperature: "temperature",
  top_k: "top-k",
  top_p: "top-p",
  steering: "steering",
};

/**
 * How the end of a text was written: its seed, the token it begins at, and its settings; null for a
 * text that came from a link.
 */
function factsOf(leaf, nGiven) {
  const nodes = pathTo(leaf);
  const at = nodes.findLastIndex((node) => node.draw);
  if (at < 0) return null;
  const {
    draw: [seed, nDrawn],
    how,
  } = nodes[at];
  return { ...how, seed, from: nGiven + at - nDrawn, steering: how.steering[0] };
}

/**
 * A text's seed and the settings in which the texts differ; of texts with one seed, also where they
 * begin.
 */
function nameOf(facts, all) {
  const differs = (name) =>
    all.some((each) => each[name] !== facts[name] && (name !== "from" || each.seed === facts.seed));
  return [
    `seed ${facts.seed}`,
    ...Object.keys(NAMES)
      .filter(differs)
      .map((name) => `${NAMES[name]} ${facts[name]}`),
  ].join(", ");
}

const cut = (text, n, fromEnd) =>
  text.length <= n ? text : fromEnd ? `…${text.slice(-n)}` : `${text.slice(0, n)}…`;

/**
 * The rows of a tree, one for each leaf: the parts of its path that no row above has drawn. A part
 * runs from one parting
 * of the ways to the next. `from` is the row and part where the row leaves; `count` the leaves that
 * a part leads to.
 */
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

/** `page.state.tree` is drawn in `list`; `open(leaf)` shows a branch. */
export function createRiver(page, list, open) {
  const { state } = page;

  /** A part's text: the end of a shared one, the beginning of a branch's own. */
  function partElement(part, isOwn) {
    const text = visible(page.textOf(part.nodes.map((node) => node.id)));
    const name = part.nodes.length ? cut(text, isOwn ? N_OWN : N_SHARED, !isOwn) : "";
    return element("bdi", { class: isOwn ? "own" : "shared", title: text.slice(0, 400) }, name);
  }

  function rowElement({ parts, leaf }, name) {
    const nodes = pathTo(leaf);
    const own = parts.at(-1);
    const common = visible(
      page.textOf(
        nodes
          .slice(0, nodes.length - own.nodes.length)
          .slice(-4)
          .map((node) => node.id),
      ),
    );
    const button = element(
      "button",
      {
        type: "button",
        class: "branch",
        "aria-current": leaf === state.current ? "true" : null,
        onclick: () => open(leaf),
      },
      element("span", { class: "hidden" }, common && `After ${common}: `),
      partElement(own, true),
      element("span", { class: "hidden" }, `, ${counted(nodes.length, "token")}`),
      element("span", { class: "soft", title: name }, name),
    );
    return element("li", {}, ...parts.slice(0, -1).map((part) => partElement(part, false)), button);
  }

  let rows = [];
  const picture = svgElement("svg", { "aria-hidden": "true" });
  list.before(picture);

  /** Draw the tree; a text of its own is no river yet. */
  function render() {
    rows = rowsOf(state.tree.root);
    if (rows.length < 2) {
      for (const each of [list, picture]) each.replaceChildren();
      return;
    }
    const facts = rows.map(({ leaf }) => factsOf(leaf, state.tree.ids.length));
    list.replaceChildren(
      ...rows.map((row, i) =>
        rowElement(row, facts[i] ? nameOf(facts[i], facts.filter(Boolean)) : ""),
      ),
    );
    lay();
  }

  /** Put each row where it leaves, and draw the water under the texts. */
  function lay() {
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
  new ResizeObserver(lay).observe(list);

  return { render };
}
