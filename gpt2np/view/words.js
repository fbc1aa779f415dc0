import { lineChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

export function sentence(pass, { kind, layer }, line) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed")
    return [`Each token becomes ${n(pass.n_embd)} numbers: notes learned from many texts.`];
  const block = layer ? `Block ${layer}: ` : "";
  if (kind === "attention") {
    const look = pass.strongestLook(layer, line);
    if (!look) return [chip, " has no token before it to look back at."];
    const key = lineChipOf(pass, look.key);
    const does = layer ? [block, chip, " takes"] : ["Heads look back: ", chip, " fetches notes,"];
    return [...does, " most from ", key, ": ", shareElement(look.weight), "."];
  }
  if (kind === "mlp")
    return [`${block}${n(pass.n_inner)} neurons turn the fetched notes into new ones.`];
  if (line < pass.count - 1) return ["Only the last row predicts. This is the row of ", chip, "."];
  return ["The last row’s notes tell how likely each token comes next."];
}
