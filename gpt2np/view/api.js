import { decodeArray } from "./pass.js";

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class ConnectionLost extends Error {}

let key = sessionStorage.getItem("gpt2np-key");

export function setKey(value) {
  key = value;
  sessionStorage.setItem("gpt2np-key", value);
}

const lost = (error) =>
  error?.name === "AbortError"
    ? error
    : new ConnectionLost("The connection to the server is lost. Try again when it is back.");

async function request(path, options = {}) {
  const headers = {
    ...(options.body && { "Content-Type": "application/json" }),
    ...(key && { Authorization: `Bearer ${key}` }),
  };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw lost(error);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(
    response.status,
    body?.error?.message ?? `The server answered with status ${response.status}.`,
  );
}

export const post = (path, body, signal) =>
  request(path, { method: "POST", body: JSON.stringify(body), signal });

/** The JSON of an answer; the connection may be lost within it, too. */
async function jsonOf(asked) {
  const response = await asked;
  return response.json().catch((error) => {
    throw lost(error);
  });
}

export const getJson = (path) => jsonOf(request(path));
export const postJson = (path, body, signal) => jsonOf(post(path, body, signal));

const kept = new Map(); // the latest answers (promises), by request
export const forgetAnswers = () => kept.clear();

/** Send a request (GET without a body), or return its cached answer. */
export function once(path, body = null, signal) {
  const request = `${path} ${JSON.stringify(body)}`;
  if (!kept.has(request)) {
    if (kept.size > 60) kept.delete(kept.keys().next().value);
    kept.set(request, body ? postJson(path, body, signal) : getJson(path));
    kept.get(request).catch(() => kept.delete(request));
  }
  return kept.get(request);
}

export function streamCompletion(body, signal) {
  const more = { stream: true, logprobs: 0, return_token_ids: true };
  return readEvents(post("v1/completions", { ...body, ...more }, signal));
}

/** Yield the data of server-sent events of an answer that was asked for. */
export async function* readEvents(asked) {
  const response = await asked;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw lost(error);
    }
    if (part.done) throw lost();
    buffer += part.value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      if (event.startsWith(":")) continue; // a comment keeps the connection open
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const content = JSON.parse(data);
      if (content.error) throw new ServerError(500, content.error.message);
      yield content;
    }
  }
}

export const readTokens = ({ token_ids, logprobs }) =>
  token_ids.map((id, i) => ({ id, logprob: logprobs.token_logprobs[i] }));

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

/** Numbers beyond a description, from the server. */
export const serverSource = ({ model, changes }) => ({
  has: () => true,
  token: (id) => once(`api/token?id=${id}&model=${encodeURIComponent(model())}`),
  async points(pass, points) {
    const body = { model: model(), prompt: pass.ids, include: [], points, n_rows: pass.count };
    const answer = await once("api/inspect", { ...body, ...changes() });
    const entries = Object.entries(answer.points);
    return Object.fromEntries(entries.map(([name, array]) => [name, decodeArray(array)]));
  },
});
