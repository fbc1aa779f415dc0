// Numbers beyond a description, from the server: activations, weights, nearest tokens.

import { once } from "./api.js";
import { decodeArray } from "./pass.js";

const WHOLE = 8192; // cells: every number of a row

/** `model()` is the model's name, `text(id)` a token's text, `changes(pass)` the fields of a request that change the pass. */
export function serverSource({ model, text, changes }) {
  const query = (path, fields) => once(`${path}?${new URLSearchParams({ model: model(), ...fields })}`);
  const weights = async ({ name, rows, columns, cells = WHOLE }) => decodeArray(await query("api/weights", { name, rows: rows.join(":"), columns: columns.join(":"), cells }));
  const row = async ({ n_embd }, name, i) => (await weights({ name, rows: [i, i + 1], columns: [0, n_embd] })).data;
  const column = async ({ n_embd }, name, i) => (await weights({ name, rows: [0, name.endsWith("bias") ? 1 : n_embd], columns: [i, i + 1] })).data;
  return {
    has: () => true, weights, row, column,
    async neuron(pass, layer, i) {
      const name = `h.${layer}.mlp.`;
      const [input, [bias], output] = await Promise.all([column(pass, `${name}c_fc.weight`, i), column(pass, `${name}c_fc.bias`, i), row(pass, `${name}c_proj.weight`, i)]);
      return { input, bias, output };
    },
    async points(pass, points) {
      const answer = await once("api/inspect", { model: model(), prompt: pass.ids, include: [], points, n_rows: pass.count, ...changes(pass) });
      return Object.fromEntries(Object.entries(answer.points).map(([name, array]) => [name, decodeArray(array)]));
    },
    async nearest(id) {
      const { ids, cosines } = await query("api/nearest", { id });
      return ids.map((other, i) => ({ id: other, text: text(other), cosine: cosines[i] }));
    },
  };
}
