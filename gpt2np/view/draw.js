// The draw: a ruler from 0 to 1, on which each token has a share, and the random number that falls
// on it.

import { nextChipOf } from "./numbers.js";
import { clamp, dataElement, ease, element, shareElement, withSpaces } from "./view.js";

// of the phase: until then temperature and filters stretch and cut the ruler
const STRETCHED = 0.45;
const FALLEN = 0.9; // of the phase: until then the number falls
const FALL = 12; // px

/** A row's share of the ruler: at `f` 0 the model's probability, at 1 that of the draw. */
function shareAt({ start, from, logprob, sampled }, f) {
  const p = Math.exp(logprob);
  return { left: start + (from - start) * f, width: p + (sampled - p) * f };
}

/** What the draw has done, in a sentence. */
function says(pass, { token, drawn, was }) {
  if (token === null) return ["A random number picks one of these."];
  const own = pass.next.find(({ id }) => id === token);
  const chip = nextChipOf(pass, token);
  if (own?.sampled === 1) return [chip, " has the whole ruler: nothing is left to chance."];
  if (drawn === null)
    return [
      chip,
      " came next",
      ...(own ? [": ", shareElement(was ? Math.exp(own.logprob) : own.sampled)] : []),
      ".",
    ];
  const number = dataElement(drawn, drawn.toFixed(3));
  const now = was
    ? ["The same number, ", number, ", now picks "]
    : ["Chance picks a number from 0 to 1: ", number, " hits "];
  return [...now, chip, "."];
}

export function createDraw() {
  const segments = element("div", { class: "segments" });
  const marker = element("span", { class: "marker", hidden: true });
  const root = element("div", { class: "draw", "aria-hidden": "true" }, segments, marker);
  const parts = new Map(); // by token: a part that stays moves to its new place
  let rows = [];
  let place = null; // where the number falls
  let stretched = null;

  /** Show the shares of `next`. `token` came; `at` is the random number (null: unknown). */
  function show({ next, nextText }, token, at) {
    rows = next;
    place = at;
    stretched = null;
    const ids = new Set(next.map(({ id }) => id));
    for (const [id, part] of parts) {
      if (!ids.has(id)) {
        part.remove();
        parts.delete(id);
      }
    }
    for (const { id } of next) {
      if (!parts.has(id))
        parts.set(id, segments.appendChild(element("span", { "data-id": id }, element("bdi"))));
      const part = parts.get(id);
      part.className = id === token ? "own" : "";
      part.firstChild.textContent = withSpaces(nextText(id));
    }
    if (at !== null) marker.style.left = `${100 * at}%`;
    marker.dataset.number = at === null ? "" : at.toFixed(3);
    marker.dataset.token = token === null ? "" : withSpaces(nextText(token));
    marker.classList.toggle("far", at > 0.5);
  }

  /** Show the moment `f` of the draw, from 0 to 1; null before it. */
  function render(f) {
    const g = f === null ? 0 : ease(f / STRETCHED);
    // the moment moves them, not a transition
    segments.classList.toggle("moves", f !== null && f < 1);
    root.parentElement.classList.toggle("fallen", f >= FALLEN);
    if (g !== stretched) {
      for (const row of rows) {
        const { left, width } = shareAt(row, g);
        Object.assign(parts.get(row.id).style, {
          left: `${100 * left}%`,
          width: `${100 * width}%`,
          visibility: width > 0 ? "" : "hidden",
        });
      }
      stretched = g;
    }
    marker.hidden = place === null || f === null || f < STRETCHED;
    const fallen = clamp((f - STRETCHED) / (FALLEN - STRETCHED)) ** 2;
    marker.style.transform = `translateY(${((fallen - 1) * FALL).toFixed(1)}px)`;
  }

  return { root, show, render, says };
}
