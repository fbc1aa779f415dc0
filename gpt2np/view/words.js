// What the picture shows at each moment, in a sentence of at most twelve words.

import { chipOf, lineChipOf, nextChipOf } from "./numbers.js";
import { dataElement, shareElement } from "./view.js";

export const phaseName = ({ kind, layer }) =>
  ({
    embed: "embedding",
    attention: `block ${layer}, attention`,
    mlp: `block ${layer}, MLP`,
    answer: "answer",
    draw: "draw",
  })[kind];

/** The moments at which the guide waits: the ends of phases, from block 1 on of the last one. */
export function stopsOf(phases) {
  const n = phases.length;
  return [...new Set([1, 2, 3, n - 2, n - 1, n])];
}

function sayDraw(pass, { token, drawn }) {
  if (token === null) return ["A random number picks one of these tokens."];
  const own = pass.next.find(({ id }) => id === token);
  const chip = nextChipOf(pass, token);
  if (own?.sampled === 1) return [chip, " has the whole ruler: nothing is left to chance."];
  if (drawn === null)
    return [chip, " came next", ...(own ? [": ", shareElement(own.sampled)] : []), "."];
  const number = dataElement(drawn, drawn.toFixed(3));
  return ["The random number ", number, " falls on ", chip, ". It is written."];
}

/** `guided`: all blocks after the first share a sentence. */
export function sentence(pass, { kind, layer }, line, shown, guided) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed") return [`Each token becomes a row of ${n(pass.n_embd)} numbers.`];
  if (guided && layer) {
    const blocks = pass.n_layer === 2 ? "Block 1 does" : `Blocks 1 to ${pass.n_layer - 1} do`;
    return [`${blocks} the same again, with other numbers.`];
  }
  if (kind === "attention") {
    const look = pass.strongestLook(layer, line);
    if (!look) return [chip, " has no token before it to look back at."];
    const share = shareElement(look.weight);
    const by = ` (head ${look.head}).`;
    return [chip, " looks back most at ", lineChipOf(pass, look.key), ": ", share, by];
  }
  if (kind === "mlp") {
    const [{ neuron }] = pass.neurons(layer, line);
    return [`${n(pass.n_inner)} neurons answer to `, chip, ` alone; number ${neuron} most.`];
  }
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  if (kind === "draw") return sayDraw(pass, shown);
  const [best] = pass.next;
  const share = shareElement(Math.exp(best.logprob));
  return ["The last row ranks all tokens: first ", chipOf(pass, best.id), ", ", share, "."];
}
