import { chipOf, lineChipOf } from "./numbers.js";
import { shareElement } from "./view.js";

export function sentence(pass, { kind, layer }, line) {
  const chip = lineChipOf(pass, line);
  const n = (count) => count.toLocaleString("en");
  if (kind === "embed")
    return [`Each token becomes ${n(pass.n_embd)} numbers: what the model knows about it.`];
  const block = layer ? `Block ${layer}: ` : "";
  if (kind === "attention") {
    const look = pass.strongestLook(layer, line);
    if (!look) return [chip, " has no token before it to look back at."];
    const key = lineChipOf(pass, look.key);
    if (layer) return [block, chip, " looks most at ", key, ": ", shareElement(look.weight), "."];
    return [chip, " looks back to know what it is about: most at ", key, "."];
  }
  if (kind === "mlp") {
    const guess = pass.guess(layer + 1, line);
    const says = `${block}${n(pass.n_inner)} neurons turn this into a guess`;
    return guess ? [says, ": ", chipOf(pass, guess.ids[0]), "."] : [says, "."];
  }
  if (line < pass.count - 1) return ["Only the last row predicts, not ", chip, "."];
  return ["The model learned to guess the next word from many texts."];
}
