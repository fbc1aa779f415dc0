import { loadModel, once, postJson } from "./api.js";
import { pathTo } from "./tree.js";
import { $, chipElement, decodeToken, decodeTokens, inText } from "./view.js";

export const SETTINGS = ["temperature", "top_k", "top_p", "max_tokens", "seed"];

/** `current` is the last token of the text, `intact` that of the text with all parts on. */
export const state = /** @type {any} */ ({
  models: [],
  model: null,
  tree: null,
  current: null,
  intact: null,
  pinned: null,
  lastRun: null,
  running: null,
  off: new Set(),
});

/** The number of an input: whole if the input counts, and the nearest in range. */
function inRange({ min, max, step, value }) {
  const number = step === "1" ? Math.round(Number(value)) : Number(value);
  return Math.min(Number(max), Math.max(Number(min), number || 0));
}

export const readSettings = () =>
  /** @type {any} */ (Object.fromEntries(SETTINGS.map((name) => [name, inRange($(name))])));

export function correctSetting(input) {
  input.value = inRange(input);
}

export function showSettings() {
  const { temperature, top_k, top_p } = readSettings();
  $("temperature-value").value = temperature.toFixed(2);
  $("top_k-value").value = top_k || "off";
  $("top_p-value").value = top_p === 1 ? "off" : top_p.toFixed(2);
}

export const sampling = ({ temperature, top_k, top_p } = readSettings()) => ({
  temperature,
  top_k,
  top_p,
});

/** A token's text after the tokens `before`, which may have begun a character. */
const tokenText = (id, before = []) =>
  decodeToken(
    state.model.bytes(id),
    before.slice(-4).flatMap((each) => [...state.model.bytes(each)]),
  );

/** The texts of consecutive tokens; that of a part of a character is "·". */
export function textsOf(ids) {
  const bytes = ids.map((id) => state.model.bytes(id));
  return decodeTokens(bytes).map((text, i) => inText(text, bytes[i]));
}

export const textOf = (ids) =>
  textsOf(ids)
    .map((text) => (text === "·" ? "" : text))
    .join("");

export const idsOf = (node) => [...state.tree.ids, ...pathTo(node).map(({ id }) => id)];
export const allIds = () => idsOf(state.current);
export const isEnd = (id) => state.model.eos_token_ids.includes(id);
export const isTreeOfPrompt = () => state.tree?.text === $("prompt").value;

export const chip = (id, before = []) => chipElement(tokenText(id, before), id);

export async function encode(text) {
  const { id } = state.model;
  const { tokens } = await postJson("tokenize", { model: id, prompt: text });
  return tokens.length ? tokens : (await loadModel(id)).empty_prompt_ids;
}

// ---- parts that are switched off, by key: "layer,head", "layer,mlp" or "layer,nNEURON"

export function partName(key) {
  const [layer, part] = key.split(",");
  if (part === "mlp") return `all neurons of block ${layer}`;
  if (part[0] === "n") return `neuron ${part.slice(1)} of block ${layer}`;
  return `head ${part} of block ${layer}`;
}

const interventions = (off = state.off) =>
  [...off].map((key) => {
    const [layer, part] = key.split(",");
    if (part === "mlp") return { point: `blocks.${layer}.mlp.out`, factor: 0 };
    if (part[0] === "n")
      return { point: `blocks.${layer}.mlp.act`, channels: [Number(part.slice(1))], factor: 0 };
    return { point: `blocks.${layer}.attn.z`, heads: [Number(part)], factor: 0 };
  });

export const changes = (off = state.off) => (off.size ? { interventions: interventions(off) } : {});

export const offKey = () => [...state.off].sort().join(" ");

/** The draw of the token at `index`, if the text knows it: a seed, and the tokens drawn before. */
function drawOf(index) {
  const node = state.tree && pathTo(state.current)[index - state.tree.ids.length];
  return node?.draw ? { seed: node.draw[0], n_drawn: node.draw[1] } : {};
}

/** Ask the server what follows `context`, of which `token` came; the answer is cached. */
export const askNext = (context, token, more = {}) => {
  const {
    draw = drawOf(context.length),
    off = state.off,
    others = [],
    model = state.model.id,
    signal,
  } = more;
  const tokens = [...new Set([token, ...others])].filter((id) => id !== null);
  const body = {
    ...{ model, prompt: context, tokens: tokens.length ? tokens : null },
    ...{ include: ["lens", "neurons", "lines"], ...sampling(), ...draw, ...changes(off) },
  };
  return once("api/inspect", body, signal);
};
