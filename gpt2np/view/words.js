import { lineChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

/** `guided`: all blocks after the first share a sentence. */
export function sentence(pass, { kind, layer }, line, guided) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed") {
    const next = guided ? " Press Next." : "";
    return [`The model computes: each token becomes ${n(pass.n_embd)} numbers.${next}`];
  }
  if (guided && layer) {
    const more = pass.n_layer === 2 ? "One more follows." : `${pass.n_layer - 1} more follow.`;
    return [`Heads and neurons together are a block. ${more}`];
  }
  const block = layer ? `Block ${layer}: ` : "";
  if (kind === "attention") {
    const look = pass.strongestLook(layer, line);
    if (!look) return [chip, " has no token before it to look back at."];
    const key = lineChipOf(pass, look.key);
    const heads = block || "Heads look back: ";
    return [heads, chip, " looks most at ", key, ": ", shareElement(look.weight), "."];
  }
  if (kind === "mlp")
    return [
      `${block}${n(pass.n_inner)} neurons react to what the heads found. Dots: the strongest.`,
    ];
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  return ["The last row tells how likely each token comes next."];
}
