import { decodeToken, decodeTokens, inText, times } from "./view.js";

let float16 = null; // the value of each pattern of bits

function fromFloat16(bits) {
  float16 ??= Float32Array.from({ length: 1 << 16 }, (_, b) => {
    const [sign, exponent, fraction] = [b & 0x8000 ? -1 : 1, (b >> 10) & 31, b & 1023];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
  });
  const values = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) values[i] = float16[bits[i]];
  return values;
}

/** Decode an array of a description: flat data and shape; float16 becomes float32. */
export function decodeArray({ dtype, shape, base64 }) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const kinds = { float16: Uint16Array, float32: Float32Array, int32: Int32Array };
  if (!kinds[dtype]) throw new Error(`This page cannot read arrays of ${dtype}.`);
  const data = new kinds[dtype](bytes.buffer);
  return { shape, data: dtype === "float16" ? fromFloat16(data) : data };
}

const decoded = new WeakMap();

export function arrayOf(json) {
  if (!decoded.has(json)) decoded.set(json, decodeArray(json));
  return decoded.get(json);
}

/** Row `index` of an array: the numbers of its last axis at the other axes' indices. */
export function row({ shape, data }, ...index) {
  const at = index.reduce((sum, i, axis) => sum * shape[axis] + i, 0);
  return data.subarray(at * shape.at(-1), (at + 1) * shape.at(-1));
}

const sum = (a, b) => a.map((value, i) => value + b[i]);

export function strongest(vector, count) {
  const n = Math.min(count, vector.length);
  return times(n, (cell) => {
    let best = 0;
    for (
      let i = Math.floor((cell * vector.length) / n);
      i < Math.floor(((cell + 1) * vector.length) / n);
      i++
    ) {
      if (Math.abs(vector[i]) > Math.abs(best)) best = vector[i];
    }
    return best;
  });
}

const decodeAll = (arrays) =>
  Object.fromEntries(Object.entries(arrays).map(([name, array]) => [name, decodeArray(array)]));

export function readPass(described) {
  if (described.format !== "gpt2np.pass" || described.version !== 1)
    throw new Error("This page cannot read this description.");
  const { shape } = described;
  const { first, ...lines } = described.lines;
  const [arrays, guesses] = [decodeAll(lines), decodeAll(described.guesses ?? {})];
  const count = arrays.wte.shape[0];
  const bytes = new Map(
    Object.entries(described.texts).map(([id, text]) => [
      Number(id),
      Uint8Array.from(atob(text), (c) => c.charCodeAt(0)),
    ]),
  );
  const bytesOf = (id) => bytes.get(id) ?? new TextEncoder().encode(`[${id}]`);
  const texts = decodeTokens(described.ids.map(bytesOf)).map((text, i) =>
    inText(text, bytesOf(described.ids[i])),
  );
  /** The residual stream: `k` is 0 before the first block, and k after block k - 1. */
  const resid = (k, line) =>
    k ? row(arrays.resid, k - 1, line) : sum(row(arrays.wte, line), row(arrays.wpe, line));
  const attention = (layer, line) => row(arrays.attention, layer, line);
  const seen = {};
  const limitOf = (data) => {
    const every = Math.ceil(data.length / 20_000);
    const sizes = Float32Array.from(
      data.filter((_, i) => i % every === 0),
      Math.abs,
    ).sort();
    return sizes[Math.floor(0.99 * (sizes.length - 1))] || 1;
  };
  return {
    ...shape,
    described,
    count,
    first,
    next: described.next,
    lens: described.lens,
    ids: described.ids,
    lineIds: described.ids.slice(first),
    text: (id) => decodeToken(bytesOf(id)),
    nextText: (id) =>
      decodeToken(
        bytesOf(id),
        described.ids.slice(-4).flatMap((each) => [...bytesOf(each)]),
      ), // after the last line
    texts, // of the tokens in their text
    lineText: (line) => texts[first + line],
    wte: (line) => row(arrays.wte, line),
    wpe: (line) => row(arrays.wpe, line),
    resid,
    attention,
    middle: (layer, line) => sum(resid(layer, line), attention(layer, line)),
    mlp: (layer, line) => row(arrays.mlp, layer, line),
    weights: (layer, head, line) => row(arrays.pattern, layer, head, line),
    /** What a block's heads take from tokens before a line, most first. */
    looks: (layer, line) =>
      (seen[[layer, line]] ??= [...Array(shape.n_head).keys()]
        .flatMap((head) =>
          [...row(arrays.pattern, layer, head, line).subarray(0, line)].map((weight, key) => ({
            key,
            weight,
            part: `${layer},${head}`,
          })),
        )
        .sort((a, b) => b.weight - a.weight)),
    /** The lens of a line after `k` blocks; null if the description has only the last line's. */
    guess: (k, line) => {
      if (line === count - 1) return described.lens[k];
      if (!guesses.ids) return null;
      const [ids, probabilities] = ["ids", "probabilities"].map((name) => [
        ...row(guesses[name], k, line),
      ]);
      return { ids, probabilities };
    },
    neurons: (layer, line) => {
      const activations = row(arrays.activations, layer, line);
      return [...row(arrays.neurons, layer, line)].map((neuron, i) => ({
        neuron,
        activation: activations[i],
      }));
    },
    /** The neurons that write most; for the last line, with the tokens that they raise. */
    strongestNeurons(layer, line) {
      const written = line === count - 1 && described.neurons?.[layer];
      return written || this.neurons(layer, line);
    },
    largestActivation: arrays.activations.data.reduce(
      (most, value) => Math.max(most, Math.abs(value)),
      1e-9,
    ),
    // Of the color scales: of all vectors between blocks, and of the embeddings, which are smaller.
    limit: limitOf(arrays.resid.data),
    embeddingLimit: limitOf(arrays.wte.data),
  };
}
