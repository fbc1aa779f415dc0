// The numbers of a pass as tables.

import {
  chipElement,
  dataElement,
  element,
  formatNumber,
  shareElement,
  withSpaces,
} from "./view.js";

const plainTable = (caption, head, rows, name = "") =>
  element(
    "table",
    { class: name },
    element("caption", {}, caption),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...head.map((each) =>
          each ? element("th", { scope: "col" }, ...[each].flat()) : element("td"),
        ),
      ),
    ),
    element("tbody", {}, ...rows),
  );
/** A table that scrolls sideways, also by the keyboard. */
export const table = (caption, ...rest) =>
  element(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    plainTable(caption, ...rest),
  );
const tableRow = (attributes, first, ...cells) =>
  element(
    "tr",
    attributes,
    element("th", { scope: "row" }, ...[first].flat()),
    ...cells.map((cell) => element("td", {}, ...[cell].flat())),
  );

export const chipOf = (pass, id) => chipElement(pass.text(id), id);
export const nextChipOf = (pass, id) => chipElement(pass.nextText(id), id);
export const lineChipOf = (pass, line) => chipElement(pass.lineText(line), pass.lineIds[line]);

const numberCell = (value) => dataElement(value, formatNumber(value, 5));

/** Vectors [name, numbers] as the columns of a table. */
export const vectorTable = (caption, parts, first = "number") =>
  table(
    caption,
    [first, ...parts.map(([name]) => name)],
    Array.from(parts[0]?.[1] ?? [], (_, i) =>
      tableRow({}, String(i), ...parts.map(([, vector]) => numberCell(vector[i]))),
    ),
    "vectors",
  );

/** The logit lens of a line; of the last line if the description has no guesses for that line. */
export function lensTable(pass, { token, line: wanted }) {
  const line = pass.guess(0, wanted) ? wanted : pass.count - 1;
  const id = pass.answer(line) ?? token ?? pass.described.tokens[0];
  const nameOf = line === pass.count - 1 ? nextChipOf : chipOf;
  const rows = pass.lens.map((_, k) => {
    const { ids, probabilities } = pass.guess(k, line);
    const { p, rank } = pass.followed(k, line, id);
    const first = [nameOf(pass, ids[0]), " ", shareElement(probabilities[0])];
    const place = k ? `after block ${k - 1}` : "at the start";
    const shown = dataElement(rank, rank.toLocaleString("en"));
    return tableRow({ "data-k": k }, place, first, shareElement(p), shown);
  });
  return table(
    "What the model would say if it had to answer after each block (the logit lens)",
    ["", "first guess", ["probability of ", nameOf(pass, id)], "rank among all tokens"],
    rows,
    "lens",
  );
}

export function attentionTable(pass, layer, line) {
  const of = Array.from({ length: pass.n_head }, (_, head) => pass.weights(layer, head, line));
  const before = of.map((weights) =>
    shareElement(Math.max(0, 1 - weights.reduce((a, b) => a + b))),
  );
  const rows = Array.from({ length: line + 1 }, (_, key) => {
    const shares = of.map((weights) => shareElement(weights[key]));
    return tableRow({ "data-key": key }, lineChipOf(pass, key), ...shares);
  });
  const name = withSpaces(pass.lineText(line));
  return table(
    `Block ${layer}, attention: how much “${name}” takes of each token. Columns add up to 100 %.`,
    ["token", ...of.map((_, head) => `head ${head}`)],
    [...(pass.first ? [tableRow({}, `${pass.first} before`, ...before)] : []), ...rows],
    "looks",
  );
}

export function neuronsTable(pass, layer, line) {
  const written = pass.written(layer, line);
  const more = ({ length, raises }) => [
    dataElement(length, formatNumber(length)),
    raises.flatMap((id) => [chipOf(pass, id), " "]),
  ];
  const rows = (written ?? pass.neurons(layer, line)).map((each) => {
    const activation = dataElement(each.activation, formatNumber(each.activation));
    return tableRow({}, String(each.neuron), activation, ...(written ? more(each) : []));
  });
  return table(
    `Block ${layer}, MLP: the neurons that write most into this row.`,
    ["neuron", "activation", ...(written ? ["length of its output", "tokens it raises"] : [])],
    rows,
    "neurons",
  );
}

export const nearestTable = (name, nearest, textOf) =>
  table(
    `The tokens whose embeddings point most in the direction of ${name}`,
    ["token", "cosine"],
    nearest.map(({ id, cosine }) =>
      tableRow({}, chipElement(textOf(id), id), dataElement(cosine, formatNumber(cosine, 4))),
    ),
    "nearest",
  );

/** Each step of the merges: its tokens, and the ranks of the pairs between them. */
export function mergesTable(name, steps) {
  const spelled = ({ tokens, ranks, chosen }) =>
    tokens.flatMap((token, i) => {
      const isJoined = chosen !== null && (i === chosen || i === chosen + 1);
      const rank = { class: i === chosen ? "rank joined" : "rank" };
      return [
        element("bdi", { class: isJoined ? "token joined" : "token" }, token),
        i < ranks.length ? element("span", rank, ranks[i] ?? "–") : "",
      ];
    });
  return table(
    `The merges of ${name}`,
    ["step", "tokens, and the ranks of the pairs"],
    steps.map((step, i) => tableRow({}, String(i), spelled(step))),
    "merges",
  );
}
