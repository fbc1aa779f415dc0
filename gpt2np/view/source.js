// Numbers beyond a description, from the server: activations, weights, nearest tokens. What was asked for is kept.

import { getJson, postJson } from "./api.js";
import { decodeArray } from "./pass.js";

/** `model()` is the model's name, `text(id)` a token's text, `changes(pass)` the fields of a request that change the pass. */
export function serverSource({ model, text, changes }) {
  const kept = new Map();
  const once = (key, ask) => {
    if (!kept.has(key)) {
      if (kept.size > 60) kept.delete(kept.keys().next().value);
      const asked = ask();
      kept.set(key, asked);
      asked.catch(() => kept.delete(key));
    }
    return kept.get(key);
  };
  const query = (path, fields) => once(`${path} ${JSON.stringify(fields)}`, () => getJson(`${path}?${new URLSearchParams(fields)}`));
  return {
    async points(pass, points) {
      const body = { model: model(), prompt: pass.ids, include: [], points, n_rows: pass.count, ...changes(pass) };
      const answer = await once(JSON.stringify(body), () => postJson("api/inspect", body));
      return Object.fromEntries(Object.entries(answer.points).map(([name, array]) => [name, decodeArray(array)]));
    },
    async weights({ name, rows, columns, cells }) {
      return decodeArray(await query("api/weights", { model: model(), name, rows: rows.join(":"), columns: columns.join(":"), cells }));
    },
    async nearest(id) {
      const { ids, cosines } = await query("api/nearest", { model: model(), id });
      return ids.map((other, i) => ({ id: other, text: text(other), cosine: cosines[i] }));
    },
  };
}
