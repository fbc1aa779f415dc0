// What a token came from: earlier tokens glow by their share in its log probability (integrated
// gradients).

import { once } from "./api.js";
import { chipElement, dataElement, formatNumber } from "./view.js";

const PAUSE = 200; // ms: the pointer may only pass by
const SLOW = 2000; // ms: a model that takes longer glows only when it is asked again
const N_SAID = 3;

/**
 * Return `glow(index)`, which lights up the tokens before `index` of the story; `glow(null)` puts
 * the light out, and ends a request for it.
 */
export function createSaliency(page, story, says, isOn) {
  let current = { key: null, controller: new AbortController() };
  const hint = says.textContent;

  function clear() {
    story.classList.remove("glowing");
    for (const piece of story.children) {
      piece.style.removeProperty("--glow");
      piece.classList.remove("against");
    }
    says.textContent = hint;
  }

  async function glow(index) {
    const ids = page.allIds().slice(0, index + 1);
    const body = isOn.checked &&
      index &&
      ids.length === index + 1 && {
        model: page.state.model.id,
        prompt: ids.slice(0, -1),
        token: ids.at(-1),
        ...page.changes(),
      };
    const key = body ? JSON.stringify(body) : null;
    if (key && key === current.key) return; // a press also focuses the token
    current.controller.abort(); // the server computes for one token at a time
    current = { key, controller: new AbortController() };
    const { signal } = current.controller;
    clear();
    if (!body) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    if (signal.aborted) return;
    const start = performance.now();
    try {
      const { values } = await once("api/saliency", body, signal);
      if (signal.aborted) return;
      show(values, ids);
    } catch (error) {
      if (signal.aborted) return;
      current.key = null;
      says.textContent = error.message;
    }
    if (performance.now() - start > SLOW && isOn.checked) {
      isOn.checked = false;
      current.key = null;
      says.append(
        ` With this model, that took ${formatNumber((performance.now() - start) / 1000, 1)} seconds, so it is off now.`,
      );
    }
  }

  function show(values, ids) {
    const most = Math.max(...values.map(Math.abs), 1e-9);
    story.classList.add("glowing");
    values.forEach((value, i) => {
      const piece = story.children[i];
      piece?.style.setProperty("--glow", Math.abs(value / most).toFixed(4));
      piece?.classList.toggle("against", value < 0);
    });
    const named = (i) => [
      chipElement(page.tokenText(ids[i])),
      " (",
      dataElement(values[i], `${values[i] > 0 ? "+" : ""}${formatNumber(values[i])}`),
      ")",
    ];
    const ranked = values
      .map((_, i) => i)
      .sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]))
      .slice(0, N_SAID);
    const list = (indices) => indices.flatMap((i, k) => [k ? ", " : "", ...named(i)]);
    const [pro, contra] = [
      ranked.filter((i) => values[i] > 0),
      ranked.filter((i) => values[i] < 0),
    ];
    says.replaceChildren(
      page.changes().interventions.length ? "In the changed model, for " : "For ",
      chipElement(page.tokenText(ids.at(-1))),
      ...(pro.length ? [" it counted most that these came before: ", ...list(pro)] : []),
      ...(contra.length
        ? [pro.length ? "; against it: " : " most counted against it: ", ...list(contra)]
        : []),
      ". (Shares of its log probability.)",
    );
  }

  return glow;
}
