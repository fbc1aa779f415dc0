// What the picture shows when one goes into it: a block, a head, a score, a token.
// A scene is { says, items, paint, at?, table }; `items` are texts and buttons in CSS pixels,
// `at(x, y)` tells what is under the pointer, and `table` is a caption and vectors [name, numbers].

import { arrayOf, row, strongest } from "./pass.js";
import { colorOf } from "./stage.js";
import {
  dataElement,
  decodeToken,
  formatNumber,
  percent,
  shareElement,
  shownNumber,
  times,
  withSpaces,
} from "./view.js";

let [LABEL, ROW] = [15, 23]; // pixels of a line of small text, and of a row of names
export function setLetters(size) {
  [LABEL, ROW] = [15 * size, 23 * size];
}
const SIGN = 14;
export const numberElement = (value) => dataElement(value, shownNumber(value));
const largest = (...arrays) =>
  arrays.reduce((most, array) => array.reduce((a, b) => Math.max(a, Math.abs(b)), most), 1e-12);
/** Paint numbers as cells, `columns` a row, with colors that are full at `limit`. */
function paintCells(context, values, columns, box, limit, colors) {
  const rows = Math.ceil(values.length / columns);
  const bitmap = document.createElement("canvas");
  [bitmap.width, bitmap.height] = [columns, rows];
  const pixels = new ImageData(columns, rows);
  values.forEach((value, i) => pixels.data.set(colorOf(value, limit, colors), 4 * i));
  bitmap.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  context.fillStyle = colors.paper;
  context.fillRect(box.x, box.y, box.w, box.h);
  context.drawImage(bitmap, box.x, box.y, box.w, box.h);
  outline(context, box, colors.rule);
}

function outline(context, { x, y, w, h }, color) {
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.strokeRect(x, y, w, h);
}

/** Paint a vector across a box: a cell for each pixel, the strongest of its numbers. */
const paintVector = (context, vector, box, limit, colors) => {
  const cells = strongest(vector, Math.max(1, Math.floor(box.w)));
  paintCells(context, cells, cells.length, box, limit, colors);
};

const inside = ({ x, y, w, h }, px, py) => px >= x && px < x + w && py >= y && py < y + h;
const label = (text, x, y, w = 0) => ({ text, x, y, w, h: LABEL + 3 });
export const chipText = (pass, line) => `“${withSpaces(pass.lineText(line))}”`;

/** A share, in whole percent where there is no room for more. */
const shareIn = (width, p) =>
  width > 44 ? percent(p) : p > 0 && p < 0.01 ? "<1 %" : `${Math.round(100 * p)} %`;

/** What is under a point of the whole model: what `partIn(layer)` finds, or a place. */
export function modelAt(pass, place, x, y, partIn) {
  const line = place.lineAt(y);
  const layer = Math.floor((x - place.start) / place.block);
  if (layer >= pass.n_layer) return { line };
  if (layer >= 0) {
    const to = { kind: "block", layer };
    return partIn(layer) || { line, to, says: [`Go into block ${layer}.`] };
  }
  if (line === null) return null;
  const id = pass.lineIds[line];
  const says = `embedding of ${chipText(pass, line)}, token ${id} at position ${pass.first + line}`;
  return { line, to: { kind: "token", id }, says: [says] };
}

/** A block: the pattern of each head, the sums on the token's line, the strongest neurons. */
export function blockScene({ layer }, { pass, line, colors, width, height, off }) {
  const heads = pass.n_head;
  const parts = [
    ["before", pass.resid(layer, line)],
    ["attention", pass.attention(layer, line)],
    ["between", pass.middle(layer, line)],
    ["neurons", pass.mlp(layer, line)],
    ["after", pass.resid(layer + 1, line)],
  ];
  const signs = ["", "+", "=", "+", "="];
  const gap = 6;
  const top = LABEL + 5;
  const size = (width + gap) / heads - gap;
  const boxes = times(heads, (head) => ({
    x: head * (size + gap),
    y: top,
    w: size,
    h: height * 0.36 - LABEL,
  }));
  const start = top + boxes[0].h + 10;
  const pitch = Math.max(LABEL, (height * 0.3) / parts.length);
  const left = Math.min(100, width * 0.28);
  const strips = parts.map((_, i) => ({
    x: left,
    y: start + i * pitch + 2,
    w: width - left,
    h: pitch - 4,
  }));
  const under = start + parts.length * pitch + 6;
  const neurons = pass.strongestNeurons(layer, line);
  const shown = neurons.slice(0, Math.max(0, Math.floor((height - under) / (LABEL + 3)) - 1));
  const looks = (head) =>
    pass
      .weights(layer, head, line)
      .reduce((a, weight, key) => (weight > a.weight ? { key, weight } : a), { key: 0, weight: 0 });
  const sayLook = (head) => {
    const { key, weight } = looks(head);
    return `head ${head}: looks most at ${chipText(pass, key)}, ${percent(weight)}`;
  };
  const sayNeuron = ({ neuron, activation, raises = [] }) =>
    `neuron ${neuron}: ${shownNumber(activation)}` +
    (raises.length ? `, raises ${raises.map((id) => withSpaces(pass.text(id))).join("  ")}` : "");
  return {
    says: [`Heads look back. Heads and neurons add to ${chipText(pass, line)}. Open a head.`],
    items: [
      ...boxes.map((box, head) => label(size > 50 ? `head ${head}` : String(head), box.x, 0, size)),
      ...boxes.map((box, head) => ({
        ...box,
        to: { kind: "head", layer, head },
        name: "spot",
        label: sayLook(head),
      })),
      ...parts.flatMap(([name], i) => {
        const y = strips[i].y + (strips[i].h - LABEL) / 2;
        return [label(signs[i], 0, y, SIGN), label(name, SIGN, y, left - SIGN)];
      }),
      ...[
        `the strongest of ${pass.n_inner.toLocaleString("en")} neurons: how much each reacts`,
        ...shown.map(sayNeuron),
      ].map((text, i) => label(text, 0, under + i * (LABEL + 3), width)),
    ],
    paint(context) {
      boxes.forEach((box, head) =>
        paintPattern(context, pass, layer, head, box, colors, off.has(`${layer},${head}`), line),
      );
      const limit = largest(...parts.map(([, vector]) => vector));
      parts.forEach(([, vector], i) => paintVector(context, vector, strips[i], limit, colors));
    },
    at(x, y) {
      const head = boxes.findIndex((box) => inside(box, x, y));
      return head < 0 ? null : { to: { kind: "head", layer, head }, says: [sayLook(head)] };
    },
    table: [`Block ${layer}: the row of ${chipText(pass, line)}`, parts],
  };
}

function paintPattern(context, pass, layer, head, box, colors, isOff, line) {
  const n = pass.count;
  const values = times(n, (row) =>
    [...pass.weights(layer, head, row)].map((weight, key) => (key > row ? 0 : weight)),
  ).flat();
  paintCells(context, values, n, box, 1, isOff ? { ...colors, plus: [128, 128, 128] } : colors);
  outline(
    context,
    { x: box.x, y: box.y + (line * box.h) / n, w: box.w, h: box.h / n },
    colors.soft,
  );
}

/** A head: its pattern; queries, keys, values and output, a row for each token. */
export function headScene(
  { layer, head },
  { pass, line, colors, width, height, data, off, rows: { y, h } },
) {
  const n = pass.count;
  const gap = 14;
  const square = { x: 0, y, w: Math.min(width * 0.4, h * 1.2), h };
  const names = ["q", "k", "v"].filter((name) => data[name]);
  const w = (width - square.w - names.length * gap) / Math.max(1, names.length);
  const boxes = names.map((_, i) => ({ x: square.w + gap + i * (w + gap), y, w, h }));
  const titles = { q: "queries", k: "keys", v: "values" };
  const rows = names.map((name) =>
    data[name].data.subarray(head * n * data[name].shape[2], (head + 1) * n * data[name].shape[2]),
  );
  const cell = (query, key) => ({
    x: square.x + (key * square.w) / n,
    y: square.y + (query * square.h) / n,
    w: square.w / n,
    h: square.h / n,
  });
  const own = pass.weights(layer, head, line);
  return {
    says: ["A cell: how much its row’s token takes from its column’s. Press one."],
    items: [
      label("pattern: looks at →", square.x, height + 4, square.w),
      ...times(line + 1, (key) => ({
        ...cell(line, key),
        to: { kind: "score", layer, head, key },
        name: "spot",
        text: cell(line, key).w > 28 ? shareIn(cell(line, key).w, own[key]) : "",
        label: `${chipText(pass, line)} looks at ${chipText(pass, key)}: ${percent(own[key])}`,
      })),
      ...names.map((name, i) => label(w > 44 ? titles[name] : name, boxes[i].x, height + 4, w)),
    ],
    paint(context) {
      paintPattern(context, pass, layer, head, square, colors, off.has(`${layer},${head}`), line);
      names.forEach((name, i) => {
        paintCells(
          context,
          rows[i],
          data[name].shape[2],
          boxes[i],
          largest(...rows.slice(i < 2 ? 0 : 2, i < 2 ? 2 : 3)),
          colors,
        );
        outline(context, { x: boxes[i].x, y: y + (line * h) / n, w, h: h / n }, colors.soft);
      });
    },
    at(x, y0) {
      if (!inside(square, x, y0)) return null;
      const query = Math.floor(((y0 - y) / h) * n);
      const key = Math.floor((x / square.w) * n);
      if (key > query) return { says: ["a token never looks ahead"] };
      const weight = pass.weights(layer, head, query)[key];
      const says = `${chipText(pass, query)} takes from ${chipText(pass, key)}: `;
      const to = { kind: "score", layer, head, key };
      return { line: query, to, says: [says, shareElement(weight)] };
    },
    table: [
      `Head ${head} of block ${layer}: the numbers of ${chipText(pass, line)}`,
      names.map((name) => [titles[name], row(data[name], head, line)]),
    ],
  };
}

const sumOf = (values) => values.reduce((all, value) => all + value, 0);

/** A score: query times key, the scale, and the softmax with the scores of the other tokens. */
export function scoreScene(
  { layer, head, key: wanted },
  { pass, line, width, height, colors, data },
) {
  const factor = pass.described.scales[layer];
  const key = Math.min(wanted, line);
  const q = row(data.q, head, line);
  const productsOf = (other) => row(data.k, head, other).map((value, i) => value * q[i]);
  const scores = times(line + 1, (other) => sumOf(productsOf(other)) * factor);
  const weights = pass.weights(layer, head, line);
  const parts = [
    [`query of ${chipText(pass, line)}`, q],
    [`key of ${chipText(pass, key)}`, row(data.k, head, key)],
    ["each pair multiplied", productsOf(key)],
  ];
  const pitch = (height * 0.62) / parts.length;
  const strips = parts.map((_, i) => ({
    x: 0,
    y: i * pitch + LABEL + 4,
    w: width,
    h: pitch - LABEL - 10,
  }));
  const y = height * 0.7;
  const w = width / scores.length;
  const shareOf = (other) => shareIn(w, weights[other]);
  const textOf = (other) => [
    withSpaces(pass.lineText(other)),
    ...(w > 44 ? [shownNumber(scores[other])] : []),
    shareOf(other),
  ];
  return {
    says: [
      "Query times key, added up: ",
      ...[numberElement(sumOf(parts[2][1])), " × ", numberElement(factor), " = "],
      ...[numberElement(scores[key]), "; the softmax makes it ", shareElement(weights[key]), "."],
    ],
    items: [
      ...parts.map(([name], i) => label(name, 0, i * pitch, width)),
      label("scores of all tokens before it, and their shares", 0, y - LABEL - 2, width),
      ...scores.map((score, other) => ({
        ...{ x: other * w, y, w, h: height - y },
        to: { kind: "score", layer, head, key: other },
        name: other === key ? "spot lines current" : "spot lines",
        text: w > 24 ? textOf(other).join("\n") : "",
        label: `${chipText(pass, other)}: ${shownNumber(score)}, ${percent(weights[other])}`,
      })),
    ],
    paint(context) {
      parts.forEach(([, vector], i) =>
        paintVector(context, vector, strips[i], largest(vector), colors),
      );
      const most = Math.max(...weights);
      context.fillStyle = colors.chance;
      context.globalAlpha = 0.45; // so that the words on it stay readable
      scores.forEach((_, other) => {
        const h = (height - y) * 0.75 * (weights[other] / most);
        context.fillRect(other * w + 2, height - h, w - 4, h);
      });
      context.globalAlpha = 1;
    },
    table: [`Head ${head} of block ${layer}: a score`, parts],
  };
}

/** A token: its embedding, the tokens with the nearest embeddings, the merges of its letters. */
export function tokenScene({ id }, { colors, width, height, data }) {
  const { nearest, steps, embedding, texts } = data.token;
  const vector = arrayOf(embedding).data;
  const textOf = (each) =>
    withSpaces(decodeToken(Uint8Array.from(atob(texts[each]), (c) => c.charCodeAt(0))));
  const name = `“${textOf(id)}”`;
  const strip = { x: 0, y: LABEL + 5, w: width, h: Math.min(26, height * 0.12) };
  const top = strip.y + strip.h + 14;
  const count = Math.max(1, Math.floor((height - top - LABEL) / ROW) - 1);
  const y = (i) => top + LABEL + 4 + i * ROW;
  const left = width * 0.52;
  const listed = nearest.slice(0, count);
  const kept = steps.length <= count ? steps : [steps[0], ...steps.slice(1 - count)];
  return {
    says: ["Tokens that are used alike have similar numbers."],
    items: [
      label(`${name} as ${vector.length} numbers`, 0, 0, width),
      label("similar tokens", 0, top, left),
      label("how its letters join", left + 8, top, width - left - 8),
      ...listed.map(({ id: other, cosine }, i) => ({
        ...{ x: 0, y: y(i), w: left * 0.55, h: ROW - 3, to: { kind: "token", id: other } },
        ...{ name: "word", text: textOf(other) },
        label: `${textOf(other)}, cosine ${formatNumber(cosine)}`,
      })),
      ...listed.map(({ cosine }, i) => label(formatNumber(cosine), left * 0.57, y(i), left * 0.2)),
      ...kept.map((step, i) => label(spell(step), left + 8, y(i), width - left - 8)),
    ],
    paint(context) {
      paintVector(context, vector, strip, largest(vector), colors);
      context.fillStyle = colors.chance;
      context.globalAlpha = 0.3;
      listed.forEach(({ cosine }, i) =>
        context.fillRect(0, y(i), left * 0.55 * Math.max(0, cosine), ROW - 3),
      );
      context.globalAlpha = 1;
    },
    table: [`The embedding of ${name}`, [["embedding", vector]]],
  };
}

const spell = ({ tokens, ranks, chosen }) =>
  tokens.join(" · ") + (chosen === null ? "" : `   → rank ${ranks[chosen]}`);
