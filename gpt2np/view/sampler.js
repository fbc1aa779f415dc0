// The sampler’s steps on logits.

const highest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function softmaxOf(values) {
  const most = highest(values);
  const exponentials = Float64Array.from(values, (value) => Math.exp(value - most));
  const total = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / total);
}

/** Apply top-k, then top-p, then min-p, as gpt2np/generation does. */
function filterLogits(scaled, { top_k: k, top_p: p, min_p: least }) {
  const kept = Float32Array.from(scaled);
  const rising = Uint32Array.from(scaled, (_, id) => id).sort((a, b) => scaled[a] - scaled[b] || a - b);
  const removed = { top_k: [], top_p: [], min_p: [] };
  const remove = (id, by) => { kept[id] = -Infinity; removed[by].push(id); };
  if (k > 0 && k < scaled.length) {
    const lowest = scaled[rising[rising.length - k]];
    for (const id of rising) if (scaled[id] < lowest) remove(id, "top_k");
  }
  if (p < 1) {
    const shares = softmaxOf(kept);
    let below = 0;
    for (const id of rising.subarray(0, -1)) {
      below += shares[id];
      if (Math.fround(below) > Math.fround(1 - p)) break;
      if (kept[id] !== -Infinity) remove(id, "top_p");
    }
  }
  if (least > 0) {
    const shares = softmaxOf(kept);
    const limit = least * shares[rising.at(-1)];
    for (const id of rising) if (kept[id] !== -Infinity && shares[id] < limit) remove(id, "min_p");
  }
  return { kept, removed };
}

/** Return a function from temperature, top_k, top_p and min_p to the probabilities that a draw uses, and what it discards. */
export function createSampler(logits) {
  const most = highest(logits);
  return (options) => {
    if (options.temperature === 0) {
      const best = logits.indexOf(most);
      return { probabilities: Float64Array.from(logits, (_, id) => Number(id === best)), mass: 1, lost: {}, count: 1 };
    }
    const scaled = Float32Array.from(logits, (value) => Math.fround(value - most) / options.temperature);
    const whole = softmaxOf(scaled);
    const { kept, removed } = filterLogits(scaled, options);
    const massOf = (ids) => ids.reduce((sum, id) => sum + whole[id], 0);
    return {
      probabilities: softmaxOf(kept),
      mass: whole.reduce((sum, p, id) => (kept[id] === -Infinity ? sum : sum + p), 0),
      lost: Object.fromEntries(Object.entries(removed).map(([by, ids]) => [by, massOf(ids)])),
      count: kept.reduce((n, value) => n + Number(value !== -Infinity), 0),
    };
  };
}
