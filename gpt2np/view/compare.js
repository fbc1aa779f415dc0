// Compare: two settings, or two models, side by side on one prompt.

import { loadModel, readTokens, streamCompletion } from "./api.js";
import { $, button, counted, decodeToken, element, percent, visible } from "./view.js";

const FIELDS = [
  ["temperature", "Temperature", 0, 2, 0.05], ["top_k", "Top-k (0: off)", 0, 1000, 1], ["top_p", "Top-p (1: off)", 0.05, 1, 0.05], ["seed", "Seed", 0, 4294967295, 1],
];
const DEFAULTS = { a: { temperature: 0, top_k: 0, top_p: 1, seed: 1 }, b: { temperature: 1.2, top_k: 0, top_p: 1, seed: 1 } };

export function createCompare(page) {
  let controller = null;
  let wanted = null; // settings from an address

  function build() {
    for (const side of ["a", "b"]) {
      const values = { ...DEFAULTS[side], ...wanted?.[side] };
      const models = element("select", { id: `${side}-model` }, ...page.state.models.map((name) => element("option", { value: name }, name)));
      models.value = page.state.models.includes(values.model) ? values.model : page.state.models[side === "b" ? page.state.models.length - 1 : 0];
      $(`side-${side}`).replaceChildren(element("legend", {}, side.toUpperCase()), element("label", {}, "Model", models),
        ...FIELDS.map(([name, label, min, max, step]) => element("label", {}, label, element("input", { type: "number", id: `${side}-${name}`, min, max, step, value: values[name], onchange: ({ target }) => { $("compare-status").textContent = page.correctSetting(target); } }))));
    }
  }

  const read = (side) => ({ model: $(`${side}-model`).value, ...Object.fromEntries(FIELDS.map(([name]) => [name, Number($(`${side}-${name}`).value)])) });

  /** Write one side's text; tokens appear as they come. */
  async function write(side, box, signal) {
    const { model: name, ...settings } = read(side);
    const model = await loadModel(name);
    const tokens = [];
    const text = element("p", { class: "story", dir: "auto" }, element("bdi", { class: "given-text" }, visible($("prompt").value)));
    const facts = element("p", { class: "facts", "data-side": side });
    const keep = button(`Go on with ${side.toUpperCase()}’s text`, () => page.adopt(ids, tokens), { disabled: true });
    box.replaceChildren(element("h3", {}, side.toUpperCase(), " ", element("span", { class: "soft" }, model.id)), text, facts, keep);
    const ids = await page.encode(name, $("prompt").value); // each model has its own tokens
    for await (const { choices: [choice] } of streamCompletion({ model: name, prompt: ids, max_tokens: page.readSettings().max_tokens, ...settings }, signal)) {
      for (const token of readTokens(choice)) {
        tokens.push(token);
        const shown = decodeToken(model.bytes(token.id));
        text.append(element("span", { class: "piece", p: Math.exp(token.logprob), "data-id": token.id, title: percent(Math.exp(token.logprob)) },
          element("bdi", {}, model.eos_token_ids.includes(token.id) ? "⟨end of text⟩" : visible(shown))));
      }
    }
    const mean = tokens.reduce((sum, token) => sum + token.logprob, 0) / tokens.length;
    facts.textContent = `${counted(tokens.length, "token")}. On average, the model gave a token of this text ${percent(Math.exp(mean))} (geometric mean): the less, the more surprising the text is to it.`;
    facts.dataset.mean = mean;
    keep.disabled = name !== page.state.model.id;
    return { model: name, tokens, text };
  }

  $("compare-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    controller?.abort();
    controller = new AbortController();
    const boxes = [element("div"), element("div")];
    $("compare-texts").replaceChildren(...boxes);
    $("compare-texts").hidden = false;
    const says = (text) => { $("compare-status").textContent = text; };
    says("Writing both…");
    page.save();
    try {
      const [a, b] = await Promise.all(["a", "b"].map((side, i) => write(side, boxes[i], controller.signal)));
      const [longer, other] = a.tokens.length < b.tokens.length ? [b, a] : [a, b];
      const first = longer.tokens.findIndex((token, i) => token.id !== other.tokens[i]?.id);
      if (a.model !== b.model) says("Two models: their tokens and their probabilities are their own.");
      else if (first < 0) says("Both texts are the same.");
      else {
        says(first === 0 ? "The texts differ from the first token on." : `The first ${first === 1 ? "token is" : `${first} tokens are`} the same; then they part.`);
        for (const { text } of [a, b]) text.querySelectorAll(".piece")[first]?.classList.add("parts-here");
      }
    } catch (error) {
      if (error.name !== "AbortError") says(error.message);
    }
  });

  return { build, read: () => ($("a-model") ? { a: read("a"), b: read("b") } : null), want: (sides) => { wanted = sides; } };
}
