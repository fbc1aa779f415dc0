import { lineChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

export function sentence(pass, { kind, layer }, line) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed")
    return [`Each token becomes ${n(pass.n_embd)} numbers, so that the model can calculate.`];
  const block = `Block ${layer}: `;
  if (kind === "attention") {
    const [look] = pass.looks(layer, line);
    if (!look) return [chip, " has no token before it."];
    const key = lineChipOf(pass, look.key);
    return [block, chip, " takes most from ", key, ": ", shareElement(look.weight), "."];
  }
  if (kind === "mlp") {
    const does = `${n(pass.n_inner)} neurons rework the numbers towards the next word.`;
    return [layer || !line ? block : "Heads look back; ", does];
  }
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  return ["The last row gives each possible next token a chance."];
}
