// The numbers of a pass as tables, below the picture. A section is drawn again when what it follows
// changes.

import {
  bar,
  chipElement,
  dataElement,
  element,
  formatNumber,
  shareElement,
  withSpaces,
} from "./view.js";

export const plainTable = (caption, head, rows, name = "") =>
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
export const tableRow = (attributes, first, ...cells) =>
  element(
    "tr",
    attributes,
    element("th", { scope: "row" }, ...[first].flat()),
    ...cells.map((cell) => element("td", {}, ...[cell].flat())),
  );

export const chipOf = (pass, id) => chipElement(pass.text(id), id);
export const nextChipOf = (pass, id) => chipElement(pass.nextText(id), id);
export const lineChipOf = (pass, line) => chipElement(pass.lineText(line), pass.lineIds[line]);

/**
 * Return the logit-lens table of a line, with `guesses` guesses per row; of the last line if the
 * description has no guesses for that line.
 */
export function lensTable(pass, { token, block, line: wanted }, guesses = 1) {
  const line = pass.guess(0, wanted) ? wanted : pass.count - 1;
  const id = pass.answer(line) ?? token ?? pass.described.tokens[0];
  const nameOf = line === pass.count - 1 ? nextChipOf : chipOf;
  const guess = ({ ids, probabilities }, i) => [
    nameOf(pass, ids[i]),
    " ",
    shareElement(probabilities[i]),
    " ",
  ];
  return table(
    "What the model would say if it had to answer after each block (the logit lens). It often changes its mind.",
    [
      "",
      "first guess",
      ["probability of ", nameOf(pass, id)],
      "rank among all tokens",
      ...(guesses > 1 ? ["further guesses"] : []),
    ],
    pass.lens.map((_, k) => {
      const at = pass.guess(k, line);
      const { p, rank } = pass.followed(k, line, id);
      return tableRow(
        { "data-k": k, class: k === block + 1 && "chosen" },
        k ? `after block ${k - 1}` : "at the start",
        guess(at, 0),
        [shareElement(p), bar(p)],
        dataElement(rank, rank.toLocaleString("en")),
        ...(guesses > 1 ? [at.ids.slice(1, guesses).flatMap((_, i) => guess(at, i + 1))] : []),
      );
    }),
    "lens",
  );
}

export function attentionTable(pass, { block, line }) {
  const of = Array.from({ length: pass.n_head }, (_, head) => pass.weights(block, head, line));
  const before = of.map((weights) =>
    shareElement(Math.max(0, 1 - weights.reduce((a, b) => a + b))),
  );
  return table(
    `Block ${block}, attention: how much of each token the line of “${withSpaces(pass.lineText(line))}” takes in, head by head. A column adds up to 100 %.`,
    ["token", ...of.map((_, head) => `head ${head}`)],
    [
      ...(pass.first ? [tableRow({}, `${pass.first} before`, ...before)] : []),
      ...Array.from({ length: line + 1 }, (_, key) =>
        tableRow(
          { "data-key": key },
          lineChipOf(pass, key),
          ...of.map((weights) => shareElement(weights[key])),
        ),
      ),
    ],
    "looks",
  );
}

export function neuronsTable(pass, { block, line }) {
  const written = pass.written(block, line);
  return table(
    `Block ${block}, MLP: the neurons that write most into this line.`,
    [
      "neuron",
      "activation",
      ...(written ? ["length of its output", "tokens it makes likelier"] : []),
    ],
    (written ?? pass.neurons(block, line)).map(({ neuron, activation, length, raises }) =>
      tableRow(
        {},
        String(neuron),
        dataElement(activation, formatNumber(activation)),
        ...(written
          ? [
              dataElement(length, formatNumber(length)),
              raises.flatMap((id) => [chipOf(pass, id), " "]),
            ]
          : []),
      ),
    ),
    "neurons",
  );
}

/**
 * The sections of every pass: what each follows, and the function that draws it for a pass and a
 * choice.
 */
export const SECTIONS = [
  {
    id: "lens",
    follows: ["block", "line", "token"],
    draw: (pass, choice) => [lensTable(pass, choice)],
  },
  {
    id: "attention",
    follows: ["block", "line"],
    draw: (pass, choice) => [attentionTable(pass, choice)],
  },
  {
    id: "neurons",
    follows: ["block", "line"],
    draw: (pass, choice) => [neuronsTable(pass, choice)],
  },
];

/** Fill `root` with sections; `show(pass, { block, line, head, token })` draws what has changed. */
export function createNumbers(root, sections = SECTIONS) {
  const panels = sections.map(({ id }) => element("div", { class: "panel", id: `${id}-panel` }));
  const drawn = sections.map(() => null);
  let last = null;
  root.append(...panels);
  return (pass, choice) => {
    sections.forEach(({ follows, draw }, i) => {
      const key = JSON.stringify(follows.map((name) => choice[name]));
      if (pass === last && key === drawn[i]) return;
      drawn[i] = key;
      panels[i].replaceChildren(...draw(pass, choice));
    });
    last = pass;
  };
}
