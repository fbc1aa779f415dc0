// The sections of the explain page: every number of a pass, from a description with the field `details`.

import { attentionTable, chipOf, lensTable, lineChipOf, neuronsTable, table, tableRow } from "./numbers.js";
import { arrayOf, row } from "./pass.js";
import { createSampler } from "./sampler.js";
import { bar, chipElement, counted, dataElement, decodeToken, element, find, formatNumber, hex, percent, shareElement, significant, visible, withSpaces } from "./view.js";

const valueElement = (value) => dataElement(value, significant(value));
const countElement = (value) => dataElement(value, value.toLocaleString("en"));
const facts = (...nodes) => element("p", { class: "facts" }, ...nodes);
const labelOf = (k) => (k ? `after block ${k - 1}` : "at the start");
const checkpoints = (pass) => Array.from({ length: pass.n_layer + 1 }, (_, k) => k);
const numbered = (pass, line) => [`${line} `, lineChipOf(pass, line)];
const fold = (summary, open, ...nodes) => element("details", { open }, element("summary", {}, ...summary), ...nodes);
const settingsOf = ([temperature, top_k, top_p]) => ({ temperature, top_k, top_p, min_p: 0 });

// ---- text and embedding

function* textNodes(pass) {
  const { prompt, n_tokens, window: [start, stop], is_encoding, pieces } = pass.described.details;
  if (!is_encoding) yield facts("The model received these tokens as they are. The text alone would be encoded as other tokens, so this page shows no merges.");
  else if (stop - start < n_tokens) yield facts(`The prompt has ${n_tokens.toLocaleString("en")} tokens. This page shows a window of them, ${start} to ${stop - 1}, which the model received as if it were the whole text.`);
  if (!pieces.length) yield facts("The prompt is empty. A model needs a first token to start from: ", lineChipOf(pass, 0), `, id ${pass.ids[0]}, which marks the beginning of a text.`);
  else yield element("pre", { class: "prompt", dir: "auto" }, prompt.split("\n").map(visible).join("↵\n"));
  const shown = pieces.map((piece) => ({ ...piece, bytes: Uint8Array.from(atob(piece.bytes), (c) => c.charCodeAt(0)), ids: pass.ids.slice(piece.first, piece.first + piece.n_tokens) }));
  const nameOf = ({ bytes }) => chipElement(decodeToken(bytes));
  if (pieces.length) yield table("Each piece of the text, its bytes, its tokens and their ids", ["piece", "bytes (hexadecimal)", "tokens", "ids"], shown.map((piece) =>
    tableRow({}, nameOf(piece), element("code", {}, hex(piece.bytes)), piece.ids.flatMap((id) => [chipOf(pass, id), " "]), piece.ids.join(" "))), "pieces");
  const longest = Math.max(...shown.map(({ steps }) => steps.length));
  for (const piece of shown) {
    const count = Math.max(0, piece.steps.length - 1);
    const says = piece.is_cut ? "a part of a long piece, without its merges" : count ? counted(count, "merge") : "nothing is merged";
    const summary = [nameOf(piece), element("span", { class: "soft" }, ` ${says} → ${piece.ids.join(" ")}`)];
    if (count) yield fold(summary, piece.steps.length === longest, mergeTable(piece));
    else yield facts(...summary);
  }
}

function mergeTable({ bytes, steps }) {
  const pair = ({ tokens, ranks, chosen }) => (chosen === null ? element("span", { class: "soft" }, "none: done")
    : element("span", {}, element("bdi", {}, tokens[chosen]), " + ", element("bdi", {}, tokens[chosen + 1]), `, rank ${ranks[chosen]}`));
  const spelled = ({ tokens, ranks, chosen }) => tokens.flatMap((token, i) => [
    element("bdi", { class: `token${chosen !== null && (i === chosen || i === chosen + 1) ? " joined" : ""}` }, token),
    ...(i < ranks.length ? [element("span", { class: i === chosen ? "rank joined" : "rank" }, ranks[i] ?? "–")] : [])]);
  return table(`The merges of the piece ${withSpaces(decodeToken(bytes))}`, ["step", "tokens, and the ranks of the pairs", "joined next"],
    steps.map((step, i) => tableRow({}, String(i), spelled(step), pair(step))), "merges");
}

function embeddingNodes(pass) {
  const { nearest } = pass.described.details;
  const cosines = arrayOf(nearest.cosines);
  return [
    facts("Press the left end of a line in the picture to see its token’s row, its position’s row and their sum. In a block, press the topmost vector to open the layer norm."),
    table("The tokens nearest to each token of the prompt, by the cosine of the angle between their rows of wte: 1 is the same direction, 0 a right angle",
      ["token", ...nearest.ids[0].map((_, i) => `${i + 1}.`)],
      nearest.ids.map((ids, line) => tableRow({}, numbered(pass, line), ...ids.map((id, i) => [chipOf(pass, id), " ", dataElement(row(cosines, line)[i], formatNumber(row(cosines, line)[i]))]))), "nearest"),
  ];
}

// ---- one block

const attentionNodes = (pass, choice) => [attentionTable(pass, choice),
  facts("To see how a weight is computed from query and key, press a block in the picture, then a head, then a token.")];

function neuronNodes(pass, choice) {
  const { block, line } = choice;
  const { position } = pass.described.details.focus;
  const activations = pass.point(`blocks.${block}.mlp.act`);
  const fired = activations && row(activations, line).filter((value) => value > 0).length;
  return [
    ...(activations ? [facts("Token ", ...numbered(pass, line), `, block ${block}: `, shareElement(fired / pass.n_inner), ` of the ${pass.n_inner.toLocaleString("en")} neurons are above zero.`)] : []),
    neuronsTable(pass, choice),
    facts(...(line === position ? ["Where does an activation come from, and what is written? Press the block in the picture, then one of the rings."]
      : ["This page has the words that neurons make likelier only for token ", ...numbered(pass, position), "."])),
  ];
}

function residualNodes(pass) {
  const lengths = arrayOf(pass.described.details.lengths);
  const most = Math.log1p(lengths.data.reduce((a, b) => Math.max(a, b), 1e-9));
  return [table("The length of the residual stream at each token: at the start and after each block", ["token", "start", ...Array.from({ length: pass.n_layer }, (_, i) => String(i))],
    pass.ids.map((_, line) => tableRow({}, numbered(pass, line), ...checkpoints(pass).map((k) => { const value = row(lengths, k)[line]; return element("span", { class: "shade", p: Math.log1p(value) / most }, valueElement(value)); }))), "lengths")];
}

// ---- output

function lensNodes(pass, choice) {
  const { line } = choice;
  const id = pass.answer(line);
  const settled = checkpoints(pass).findLastIndex((k) => pass.followed(k, line, id).rank !== 1) + 1;
  return [
    facts("After token ", ...numbered(pass, line), ", the model’s most likely next token is ", chipOf(pass, id), `. It takes the first place ${labelOf(Math.min(settled, pass.n_layer))} and keeps it.`),
    lensTable(pass, choice, 5),
  ];
}

const SLIDERS = [["temperature", "temperature", 0, 2, 0.05, 1], ["top_k", "top-k", 0, 100, 1, 0], ["top_p", "top-p", 0.01, 1, 0.01, 1], ["min_p", "min-p", 0, 0.5, 0.01, 0]];
const COMMON = [[1, 0, 1], [0.7, 0, 1], [1, 40, 1], [1, 0, 0.9], [0.8, 40, 0.95]]; // temperature, top-k, top-p

function samplingNodes(pass) {
  const { details } = pass.described;
  const { data: logits } = arrayOf(details.logits);
  const sample = createSampler(logits);
  const { probabilities } = sample(settingsOf(COMMON[0]));
  const falling = [...probabilities].sort((a, b) => b - a);
  const needed = (mass) => { let [n, sum] = [0, 0]; while (sum < mass && n < falling.length) sum += falling[n++]; return n; };
  const sliders = SLIDERS.map(([name, label, min, max, step, value]) => element("label", { class: "slide" }, label, " ", element("output"), element("input", { type: "range", name, min, max, step, value })));
  const form = element("form", { class: "sliders" }, ...sliders, element("button", { type: "reset" }, "Back to the model’s own distribution"));
  const mass = element("div", { class: "mass", role: "img" });
  const says = element("p", { class: "facts mass-says", role: "status" });
  const listed = details.likely;
  const n_others = logits.length - listed.length;
  const rows = listed.map((id) => tableRow({ "data-id": id }, chipOf(pass, id), String(id), valueElement(logits[id]), shareElement(probabilities[id]), element("span", { class: "sampled" })));
  const others = tableRow({ class: "rest" }, `all ${n_others.toLocaleString("en")} others`, "", "", shareElement(falling.slice(listed.length).reduce((a, b) => a + b, 0)), element("span", { class: "sampled" }));
  const show = () => {
    const options = Object.fromEntries(sliders.map((each) => { const { name, value } = find("input", each); find("output", each).value = name === "top_k" && value === "0" ? "off" : value; return [name, Number(value)]; }));
    const sampled = sample(options);
    const most = Math.max(...listed.map((id) => sampled.probabilities[id]));
    listed.forEach((id, i) => {
      const p = sampled.probabilities[id];
      rows[i].classList.toggle("cut", !p);
      find(".sampled", rows[i]).replaceChildren(dataElement(p, p ? percent(p) : "discarded"), bar(p / most));
    });
    const rest = 1 - listed.reduce((sum, id) => sum + sampled.probabilities[id], 0);
    find(".sampled", others).replaceChildren(dataElement(rest, rest < 1e-12 ? "0 %" : percent(rest)));
    showMass(options, sampled);
  };
  const showMass = ({ temperature }, { mass: kept, lost, count }) => {
    const parts = Object.entries(lost).filter(([, share]) => share > 0);
    mass.replaceChildren(element("span", { class: "kept", p: kept }), ...parts.map(([by, share]) => element("span", { class: "lost", "data-by": by, p: share })));
    says.replaceChildren(...(temperature === 0 ? ["Temperature 0: always the most likely token."] : [
      "Kept: ", countElement(count), ` of ${logits.length.toLocaleString("en")} tokens with `, shareElement(kept), " of the probability at this temperature. ",
      ...(parts.length ? ["Discarded: ", ...parts.flatMap(([by, share], i) => [i ? ", " : "", shareElement(share), ` by ${by.replace("_", "-")}`]), "."] : ["Nothing is discarded."])]));
    mass.setAttribute("aria-label", says.textContent);
  };
  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  show();
  return [
    facts("After token ", ...numbered(pass, details.focus.position), ". How many of the most likely tokens it takes for a share of the probability: ", ...[0.5, 0.9, 0.99].flatMap((share, i) => [i ? ", " : "", countElement(needed(share)), ` for ${100 * share} %`]), "."),
    form, mass, says,
    table(`The ${listed.length} most likely next tokens; probabilities are of the whole vocabulary`, ["token", "id", "logit", "probability", "when sampled"], n_others > 0 ? [...rows, others] : rows, "next"),
    table("What common settings keep", ["temperature", "top-k", "top-p", "tokens kept", "mass kept", "discarded", "most likely"], COMMON.map((setting) => {
      const kept = sample(settingsOf(setting));
      return tableRow({}, String(setting[0]), setting[1] || "–", setting[2] === 1 ? "–" : setting[2], countElement(kept.count), shareElement(kept.mass), shareElement(Math.max(0, 1 - kept.mass)), [chipOf(pass, listed[0]), " ", shareElement(kept.probabilities[listed[0]])]);
    }), "common"),
  ];
}

function generationNodes(pass) {
  const { steps } = pass.described.details;
  const ms = (seconds, most) => [dataElement(1000 * seconds, formatNumber(1000 * seconds)), bar(seconds / most)];
  const total = (values) => values.reduce((a, b) => a + b);
  const most = Math.max(...steps.seconds, ...steps.seconds_without);
  return [
    facts(...steps.ids.map(([id]) => chipOf(pass, id))),
    table("Each step’s most likely tokens, with their probabilities", ["step", "taken", ...steps.ids[0].slice(1).map(() => "instead")],
      steps.ids.map((ids, i) => tableRow({}, String(i + 1), ...ids.map((id, j) => [chipOf(pass, id), " ", shareElement(steps.probabilities[i][j])]))), "steps"),
    table("How the cache grows, and what it saves", ["step", "tokens seen", "cache, bytes", "operations with it", "without", "ms with it", "without", "largest difference of a logit"],
      steps.contexts.map((context, i) => tableRow({}, String(i + 1), String(context), ...[steps.bytes, steps.flops, steps.flops_without].map((values) => countElement(values[i])),
        ms(steps.seconds[i], most), ms(steps.seconds_without[i], most), valueElement(steps.differences[i]))), "cache"),
    facts("Times are the faster of two runs, measured while this page was made. In all, the cache saved ", shareElement(1 - total(steps.flops) / total(steps.flops_without)),
      ` of the operations, and the steps took ${formatNumber(1000 * total(steps.seconds), 1)} ms instead of ${formatNumber(1000 * total(steps.seconds_without), 1)}.`),
  ];
}

// ---- the whole model

const GROUPS = [["wte.weight", "token embedding"], ["wpe.weight", "position embedding"], [".attn.", "attention"], [".mlp.", "MLP"], ["ln_", "layer norms"], ["lm_head", "unembedding of its own"]];

function auditNodes(pass) {
  const counts = Object.entries(pass.described.details.tensors).map(([name, shape]) => ({ name, shape, count: shape.reduce((a, b) => a * b) }));
  const sum = (rows) => rows.reduce((total, { count }) => total + count, 0);
  const whole = sum(counts);
  const groups = GROUPS.map(([part, title]) => [title, sum(counts.filter(({ name }) => name.includes(part)))]).filter(([, count]) => count);
  const total = ["total", countElement(whole)];
  return [
    table("Where the numbers are", ["part", "numbers", "share"], [...groups.map(([title, count]) => tableRow({}, title, countElement(count), [shareElement(count / whole), bar(count / whole)])), tableRow({ class: "total" }, ...total, "100 %")], "groups"),
    fold([`Every tensor, ${counts.length} of them`], false, table("Every tensor of the model", ["tensor", "shape", "numbers", "bytes"],
      [...counts.map(({ name, shape, count }) => tableRow({}, element("code", {}, name), shape.join(" × "), countElement(count), (4 * count).toLocaleString("en"))), tableRow({ class: "total" }, "total", `${counts.length} tensors`, countElement(whole), (4 * whole).toLocaleString("en"))], "tensors")),
  ];
}

function timeNodes(pass) {
  const { passes, seconds, parts } = pass.described.details.time;
  const total = (name) => parts.reduce((sum, part) => sum + part[name], 0);
  const [time, work] = [total("seconds"), total("flops")];
  return [
    facts(`One pass over the ${pass.count} tokens, with logits for each, all blocks together. The time of a part is the time between two calls of the hook, the median of ${passes} passes; without a hook the same pass took ${formatNumber(1000 * seconds)} ms on the machine that made this page.`),
    table("Time and operations", ["part", "ms", "of the time", "operations", "of these", "billions a second"], parts.map((part) => tableRow({}, [`${part.name} `, element("code", {}, part.point)],
      formatNumber(1000 * part.seconds, 3), [shareElement(part.seconds / time), bar(part.seconds / time)],
      ...(part.flops ? [countElement(part.flops), shareElement(part.flops / work), formatNumber(part.flops / part.seconds / 1e9, 1)] : ["–", "–", "–"]))), "time"),
  ];
}

function precisionNodes(pass) {
  const { precision } = pass.described.details;
  if (!precision) return [facts("The comparison with float64 was left out.")];
  return [
    facts(`The most likely next token is the same at ${precision.n_same} of ${pass.count} positions. The logits themselves go from `, valueElement(precision.range[0]), " to ", valueElement(precision.range[1]), "."),
    table("Difference to float64, all tokens of the prompt", ["", "largest", "mean"], ["logits", "probabilities"].map((name) => tableRow({}, name, ...precision[name].map(valueElement))), "precision"),
    table("The residual stream’s largest relative difference to float64", ["", "difference"], precision.residual.map((value, k) => tableRow({}, labelOf(k), valueElement(value))), "differences"),
  ];
}

const EXPLAINED = [
  { id: "text", title: "From text to ids", draw: (pass) => [...textNodes(pass)], source: "tokenizer/trace.py: merge_steps",
    formula: "next merge = the pair of neighbors with the lowest rank, the leftmost of equals",
    says: "A model reads numbers, not letters. A regular expression splits the text into pieces, and each piece is written as bytes; inside a piece, the pair of neighbors with the lowest rank is joined, again and again, until no pair is in the list of merges. The results are the tokens, and each has a number, its id." },
  { id: "embedding", title: "From ids to vectors", draw: embeddingNodes, source: "model/gpt2.py: gpt2", formula: "x = wte[id] + wpe[position]",
    says: "Each id selects a row of a table, each position a row of a second table, and the two rows are added. Tokens whose rows point in similar directions are used in similar ways." },
  { id: "attention", title: "Attention", follows: ["block", "line"], draw: attentionNodes, source: "model/gpt2.py: attention", formula: "score(i, j) = scale · Σ_d q_i[d] · k_j[d]      pattern(i, ·) = softmax(score(i, ·))",
    says: "Each head computes three short vectors from every token: a query (what the token looks for), a key (what it can be found by) and a value (what it passes on). A softmax turns the scores of a query into weights that add up to 1. Later tokens are hidden from a query." },
  { id: "neurons", title: "The MLP’s most active neurons", follows: ["block", "line"], draw: neuronNodes, source: "model/gpt2.py: mlp", formula: "h = activation(x · W_fc + b_fc)      out = h · W_proj + b_proj",
    says: "After attention, each token goes through the neurons by itself. A neuron that fires adds its own learned vector, times its activation, to the residual stream; it makes the tokens likelier whose rows fit that vector, layer norms aside." },
  { id: "residual", title: "The residual stream grows", draw: residualNodes, source: "model/gpt2.py: transformer_block", formula: "x ← x + attention(ln_1(x))      x ← x + mlp(ln_2(x))      length = √(Σ x²)",
    says: "Every block only adds to the residual stream, so its vectors mostly grow from block to block. In many models the first token’s vector grows far beyond the others: heads that have nothing to do look at the first token." },
  { id: "lens", title: "The logit lens", follows: ["block", "line"], draw: lensNodes, source: "interp/lens.py: logit_lens", formula: "logits after block l = ln_f(x_l) · W_U      probability = softmax(logits)",
    says: "The last layer norm and the unembedding turn the residual stream into logits; here they are applied early, after each block. A guess need not get better from block to block." },
  { id: "sampling", title: "From vector to next token", draw: samplingNodes, source: "generation/sampling.py: next_probabilities",
    formula: "p = softmax(logits / temperature)\ntop-k: the k highest   ·   top-p: the smallest set that reaches p   ·   min-p: those with p ≥ min-p · p_max",
    says: "The last layer norm and the unembedding give a logit for each token of the vocabulary. Sampling first cuts the distribution: a discarded token can never be drawn, and the kept probabilities are scaled up to add up to 1." },
  { id: "generation", title: "Token after token", draw: generationNodes, source: "runtime/kv_cache.py: KVCache", formula: "cache bytes = 2 · layers · tokens · channels · 4",
    says: "The most likely token is appended to the text, and the model runs again. The keys and values of earlier tokens never change, so they are kept in a cache, and only the new token has to go through the blocks. Every step is also computed without the cache, and must give the same result." },
  { id: "audit", title: "Every number of the model", draw: auditNodes, source: "checkpoint/names.py: weight_shapes", formula: "count = product of the shape      bytes = count · 4 in float32",
    says: "These tensors are the whole model; their counts add up to its size. In a small model the token embedding is a large part; in a large model nearly all numbers are in the blocks, and two thirds of these in the MLPs." },
  { id: "time", title: "Where the time went", draw: timeNodes, source: "explain/measure.py: seconds_per_part", formula: "a product (n, k) · (k, m) has 2 · n · k · m operations",
    says: "Operations are counted from the shapes of the matrix products, each query with the keys that it sees." },
  { id: "precision", title: "Float32 precision", draw: precisionNodes, source: "explain/measure.py: measure_precision", formula: "difference = |float32 − float64|      relative: ÷ the vector’s length",
    says: "Everything here was computed in float32, numbers with about 7 decimal digits; sums of thousands of such numbers lose some. The same ids went through the same weights once more in float64, with 16 digits." },
];

/** The sections of the explain page: what it is, the formula, who computes it, the numbers. */
export const EXPLAIN_SECTIONS = EXPLAINED.map(({ id, title, says, formula, source, follows = [], draw }) => ({
  id, title, follows,
  draw: (pass, choice) => [
    element("div", { class: "about" }, element("h2", {}, title), element("p", { class: "says" }, says), element("p", { class: "formula" }, formula), element("p", { class: "hint" }, "Computed by ", element("code", {}, `gpt2np/${source}`))),
    element("div", { class: "body" }, ...draw(pass, choice)),
  ],
}));
