import { once } from "./api.js";
import { allIds, changes, state, textsOf } from "./state.js";
import { $, chipElement } from "./view.js";

const MOST = 256; // tokens of a text that the server does this for
let asked = new AbortController();

function clear() {
  asked.abort(); // the server computes for one token at a time
  asked = new AbortController();
  $("story").classList.remove("glowing");
  $("glow-says").replaceChildren();
  for (const piece of $("story").children) {
    piece.style.removeProperty("--glow");
    piece.classList.remove("against");
  }
}

/** Light up the tokens that the token at `index` came from, or none (null). */
export async function glow(index) {
  clear();
  const { signal } = asked;
  const ids = index ? allIds().slice(0, index + 1) : [];
  if (ids.length !== index + 1 || ids.length > MOST) return; // the next token is open
  const [prompt, token] = [ids.slice(0, -1), ids.at(-1)];
  try {
    const body = { model: state.model.id, prompt, token, ...changes() };
    const { values } = await once("api/saliency", body, signal);
    if (!signal.aborted) show(values, ids);
  } catch (error) {
    if (!signal.aborted) $("glow-says").textContent = error.message;
  }
}

function show(values, ids) {
  const most = Math.max(...values.map(Math.abs), 1e-9);
  $("story").classList.add("glowing");
  values.forEach((value, i) => {
    const piece = $("story").children[i];
    piece?.style.setProperty("--glow", Math.abs(value / most).toFixed(4));
    piece?.classList.toggle("against", value < 0);
  });
  const own = chipElement(textsOf(ids).at(-1), ids.at(-1));
  $("glow-says").replaceChildren("Green lines made ", own, " likelier, gray dots less likely.");
}
