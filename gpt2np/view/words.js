import { lineChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

export function sentence(pass, { kind, layer }, line) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed")
    return [`First, each token becomes ${n(pass.n_embd)} numbers to calculate with.`];
  if (kind === "attention") {
    const [look] = pass.looks(layer, line);
    if (!look) return [chip, " has no token before it."];
    const key = lineChipOf(pass, look.key);
    const share = shareElement(look.weight);
    if (layer) return [`Block ${layer}: `, chip, " takes most from ", key, ", ", share, "."];
    return ["A head looks back: it gives ", key, " ", share, " of its attention."];
  }
  if (kind === "mlp") return [`Block ${layer}: ${n(pass.n_inner)} neurons rework the numbers.`];
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  return ["The last row gives each possible next token a chance."];
}
