// What the picture shows at each moment, in a sentence of at most twelve words.

import { lineChipOf, nextChipOf } from "./numbers.js";
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

function sayDraw(pass, { token, drawn, isAlone }) {
  if (token === null) return ["A random number picks one of these."];
  const own = pass.next.find(({ id }) => id === token);
  const chip = nextChipOf(pass, token);
  if (own?.sampled === 1) return [chip, " has the whole ruler: nothing is left to chance."];
  if (drawn === null)
    return [chip, " came next", ...(own ? [": ", shareElement(own.sampled)] : []), "."];
  const number = dataElement(drawn, drawn.toFixed(3));
  return ["Chance picks ", number, ": that is ", chip, isAlone ? "." : ". It is written."];
}

/** `guided`: all blocks after the first share a sentence. */
export function sentence(pass, { kind, layer }, line, shown, guided) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed") {
    const next = guided ? " Press Next." : "";
    return [`Each token becomes ${n(pass.n_embd)} numbers, learned from many texts.${next}`];
  }
  if (guided && layer) {
    const blocks = pass.n_layer === 2 ? "Block 1 does" : `Blocks 1 to ${pass.n_layer - 1} do`;
    return [`${blocks} the same, with other heads and neurons.`];
  }
  const [then, one] = layer ? [`Block ${layer}:`, `Block ${layer}: one`] : ["Then", "One"];
  if (kind === "attention") {
    const look = pass.strongestLook(layer, line);
    if (!look) return [chip, " has no token before it to look back at."];
    const key = lineChipOf(pass, look.key);
    return [
      `${one} head of `,
      chip,
      " looks back most at ",
      key,
      ": ",
      shareElement(look.weight),
      ".",
    ];
  }
  if (kind === "mlp")
    return [`${then} ${n(pass.n_inner)} neurons react to `, chip, "; the dots are the strongest."];
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  if (kind === "draw") return sayDraw(pass, shown);
  return ["The last row tells how likely each token comes next."];
}
