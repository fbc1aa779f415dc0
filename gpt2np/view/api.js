// Requests to the server: JSON, streams of events, numbers beyond a description, and the connection.

import { decodeArray } from "./pass.js";

const WHOLE = 8192; // the most cells of a part: every number of a row

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class ConnectionLost extends Error {}

let tell = () => {};
/** Call `listener(isLost)` when the server can't be reached, and when it answers. */
export const onConnection = (listener) => { tell = listener; };

let key = sessionStorage.getItem("gpt2np-key");

export function setKey(value) {
  key = value;
  sessionStorage.setItem("gpt2np-key", value);
}

function connectionLost() {
  tell(true);
  return new ConnectionLost("The connection to the server is lost.");
}

async function request(path, options = {}) {
  const headers = { ...(options.body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : connectionLost();
  }
  tell(false);
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(response.status, body?.error?.message ?? `The server answered with status ${response.status}.`);
}

export const post = (path, body, signal) => request(path, { method: "POST", body: JSON.stringify(body), signal });
export const getJson = async (path) => (await request(path)).json();
export const postJson = async (path, body, signal) => (await post(path, body, signal)).json();

const kept = new Map(); // the latest answers (promises), by request
const keyOf = (path, body) => `${path} ${JSON.stringify(body)}`;
export const isKept = (path, body) => kept.has(keyOf(path, body));

/** Send a request, which `signal` can abort, or return its cached answer. Without a body, send GET. */
export function once(path, body = null, signal) {
  const request = keyOf(path, body);
  if (!kept.has(request)) {
    if (kept.size > 60) kept.delete(kept.keys().next().value);
    kept.set(request, body ? postJson(path, body, signal) : getJson(path));
    kept.get(request).catch(() => kept.delete(request));
  }
  return kept.get(request);
}

/** Ask for a completion at once; return its stream of events. */
export function streamCompletion(body, signal) {
  return readEvents(post("v1/completions", {
    ...body, stream: true, logprobs: 10, return_token_ids: true, return_tokens_as_token_ids: true,
  }, signal));
}

async function* readEvents(asked) {
  const response = await asked;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : connectionLost();
    }
    if (part.done) throw connectionLost();
    buffer += part.value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const content = JSON.parse(data);
      if (content.error) throw new ServerError(500, content.error.message);
      yield content;
    }
  }
}

/** Tokens of a choice or chunk: id and log probability, also of the likeliest ten. */
export function readTokens(choice) {
  const number = (name) => Number(name.slice("token_id:".length));
  const { tokens, token_logprobs: own, top_logprobs: top } = choice.logprobs;
  return tokens.map((name, i) => ({
    id: number(name),
    logprob: own[i],
    top: top[i] && Object.entries(top[i]).map(([other, logprob]) => ({ id: number(other), logprob })).sort((a, b) => b.logprob - a.logprob),
  }));
}

const models = new Map();

/** Load a model's description; `bytes(id)` returns the bytes of a token. */
export async function loadModel(name) {
  if (!models.has(name)) {
    const model = await getJson(`api/model?model=${encodeURIComponent(name)}`);
    model.bytes = (id) => Uint8Array.from(atob(model.tokens[id] ?? ""), (c) => c.charCodeAt(0));
    models.set(name, model);
  }
  return models.get(name);
}

/** Numbers beyond a description: activations, weights, nearest tokens. `model()` is the model's name, `text(id)` a token's text, `changes(pass)` the fields of a request that change the pass. */
export function serverSource({ model, text, changes }) {
  const query = (path, fields) => once(`${path}?${new URLSearchParams({ model: model(), ...fields })}`);
  const weights = async ({ name, rows, columns, cells = WHOLE }) => {
    const part = await query("api/weights", { name, cells, ...(rows && { rows: rows.join(":") }), ...(columns && { columns: columns.join(":") }) });
    return { ...decodeArray(part), size: part.size };
  };
  const row = async (name, i) => (await weights({ name, rows: [i, i + 1] })).data;
  const column = async (name, i) => (await weights({ name, columns: [i, i + 1] })).data;
  return {
    has: () => true, weights, row, column,
    async neuron(layer, i) {
      const name = `h.${layer}.mlp.`;
      const [input, [bias], output] = await Promise.all([column(`${name}c_fc.weight`, i), column(`${name}c_fc.bias`, i), row(`${name}c_proj.weight`, i)]);
      return { input, bias, output };
    },
    async points(pass, points) {
      const answer = await once("api/inspect", { model: model(), prompt: pass.ids, include: [], points, n_rows: pass.count, ...changes(pass) });
      return Object.fromEntries(Object.entries(answer.points).map(([name, array]) => [name, decodeArray(array)]));
    },
    async nearest(id) {
      const { ids, cosines } = await query("api/nearest", { id });
      return ids.map((other, i) => ({ text: text(other), cosine: cosines[i] }));
    },
  };
}
