import { lineChipOf, nextChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

/** `passed`: in the guide, the number of blocks that the last row has passed. */
export function sentence(pass, { kind, layer }, line, passed) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed")
    return [`Each token becomes ${n(pass.n_embd)} numbers: the model’s notes about it.`];
  if (passed && layer) {
    if (passed === pass.n_layer)
      return [`${passed} blocks built on each other. The last guess counts.`];
    const guess = nextChipOf(pass, pass.lens[passed].ids[0]);
    return [`Block ${layer} builds on block ${layer - 1}. The guess so far: `, guess];
  }
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
