// What the picture shows at each moment, in a sentence of at most twelve words.

import { lineChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

/** `guided`: all blocks after the first share a sentence. */
export function sentence(pass, { kind, layer }, line, guided) {
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
  const [then, one] = layer
    ? [`Block ${layer}:`, `Block ${layer}: a head of `]
    : ["Then", "One head looks back: "];
  if (kind === "attention") {
    const look = pass.strongestLook(layer, line);
    if (!look) return [chip, " has no token before it to look back at."];
    const key = lineChipOf(pass, look.key);
    return [one, chip, " looks most at ", key, ": ", shareElement(look.weight), "."];
  }
  if (kind === "mlp")
    return [
      `${then} ${n(pass.n_inner)} neurons react, each to its own pattern. Dots: the strongest.`,
    ];
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  return ["The last row tells how likely each token comes next."];
}
