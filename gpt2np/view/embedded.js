// Starts the Machine on a page that contains the description of its pass.

import { EXPLAIN_SECTIONS } from "./details.js";
import { createMachine } from "./machine.js";
import { SECTIONS, chipOf } from "./numbers.js";
import { arrayOf, row } from "./pass.js";
import { element, find, shareElement } from "./view.js";

const described = JSON.parse(find("#data").textContent).pass;
const { details, draw } = described;
const sections = details ? EXPLAIN_SECTIONS : SECTIONS;
const rowNamed = (name, i) => {
  const [, layer, part] = /^h\.(\d+)\.ln_1\.(\w+)$/.exec(name) ?? [];
  if (part) return row(arrayOf(details.norm[part]), layer);
  return name === "wte.weight" ? row(arrayOf(details.wte), described.ids.indexOf(i)) : row(arrayOf(details.wpe), i);
};
const placeOf = (layer, neuron) => (details.weights[layer] ? details.neurons[layer].findIndex((each) => each.neuron === neuron) : -1);
/** Numbers that the page contains in addition to the pass: activations, rows of the embeddings, nearest tokens, weights of the neurons that write most. */
const source = details && {
  has({ kind, layer, neuron }) {
    if (kind === "neuron") return placeOf(layer, neuron) >= 0;
    return kind === "norm" ? Boolean(described.points[layer ? `blocks.${layer - 1}.resid` : "embed"]) : ["score", "term"].includes(kind);
  },
  points: async (pass, names) => Object.fromEntries(names.map((name) => [name, pass.point(name)]).filter(([, array]) => array)),
  row: async (name, i) => rowNamed(name, i),
  async neuron(layer, neuron) {
    const [{ input, bias, output }, i] = [details.weights[layer], placeOf(layer, neuron)];
    return { input: row(arrayOf(input), i), bias: arrayOf(bias).data[i], output: row(arrayOf(output), i) };
  },
  async nearest(id) {
    const at = described.ids.indexOf(id);
    return details.nearest.ids[at].map((other, i) => ({ text: machine.pass.text(other), cosine: row(arrayOf(details.nearest.cosines), at)[i] }));
  },
};
const machine = createMachine(find("#machine"), { sections, source });
machine.show(described, { token: draw?.id ?? null, line: details?.focus.position ?? null });
machine.isolate(details?.focus.head ?? null);

if (details) {
  const [best] = described.next;
  const n = described.ids.length;
  find("h1").after(element("p", { class: "lead" }, `${n} ${n === 1 ? "token goes" : "tokens go"} in, and out comes a probability for each of ${described.shape.vocab_size.toLocaleString("en")} tokens to be the next. Here the most likely is `,
    chipOf(machine.pass, best.id), ", with ", shareElement(Math.exp(best.logprob)), ". Press a token or a block in the picture: the numbers below follow it."));
  find("main").append(element("nav", { "aria-label": "Contents" }, ...sections.map(({ id, title }) => element("a", { href: `#${id}-panel` }, title))));
}

// After the first picture: the tables take longer.
requestAnimationFrame(() => setTimeout(() => {
  find("main").append(machine.panels);
  machine.openBlock(details?.focus.layer ?? 0);
  if (details) {
    document.body.append(element("footer", {}, element("dl", {}, ...Object.entries({ model: described.model, ...details.facts }).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
      element("p", {}, "Probabilities are of the whole vocabulary. A number shows all its digits when you point at it. This file loads nothing from anywhere.")));
  }
  document.documentElement.dataset.ready = "true";
}));
let closed = [];
addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open])")]; for (const each of closed) each.open = true; });
addEventListener("afterprint", () => { for (const each of closed) each.open = false; });
