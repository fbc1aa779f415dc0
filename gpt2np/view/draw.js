// The draw: a ruler from 0 to 1, on which each token has a share, and the random number that falls
// on it.

import { nextChipOf } from "./numbers.js";
import { clamp, dataElement, ease, element, shareElement, withSpaces } from "./view.js";

// of the phase: until then temperature and filters stretch and cut the ruler
export const STRETCHED = 0.5;
const FALLEN = 0.9; // of the phase: until then the number falls
const FALL = 10; // px

/** A row's share of the ruler: at `f` 0 the model's probability, at 1 that of the draw. */
function shareAt({ start, from, logprob, sampled }, f) {
  const p = Math.exp(logprob);
  return { left: start + (from - start) * f, width: p + (sampled - p) * f };
}

/** Which of the three parts of the draw `f` is in: stretched, falling, fallen. */
const part = (f) => (f <= STRETCHED ? 0 : f < FALLEN ? 1 : 2);

/** What the draw has done at `f`, in a sentence. */
function says(pass, { token, drawn, was, title }, f) {
  if (token === null) return ["A random number picks one of these."];
  const own = pass.next.find(({ id }) => id === token);
  const chip = nextChipOf(pass, token);
  if (!part(f) && !was) {
    const best = pass.next.reduce((a, b) => (b.logprob > a.logprob ? b : a));
    const shares = [shareElement(Math.exp(best.logprob)), " → ", shareElement(best.sampled)];
    return [`${title.split(":")[0]}: `, nextChipOf(pass, best.id), " ", ...shares, "."];
  }
  if (own?.sampled === 1) return [chip, " has the whole ruler: nothing is left to chance."];
  if (drawn === null)
    return [chip, " came next", ...(own ? [": ", shareElement(own.sampled)] : []), "."];
  const number = dataElement(drawn, drawn.toFixed(3));
  const now = was
    ? ["The same number, ", number, ", now picks "]
    : ["Chance picks a number from 0 to 1: ", number, " hits "];
  return part(f) < 2 ? [...now, "…"] : [...now, chip, "."];
}

export function createDraw() {
  const segments = element("div", { class: "segments" });
  const marker = element("span", { class: "marker", hidden: true });
  const root = element("div", { class: "draw", "aria-hidden": "true" }, segments, marker);
  let rows = [];
  let place = null; // where the number falls
  let stretched = null;

  /** Show the shares of `next`. `token` came; `at` is the random number (null: unknown). */
  function show({ next, nextText }, token, at) {
    rows = next;
    place = at;
    stretched = null;
    segments.replaceChildren(
      ...next.map(({ id }) => {
        const name = element("bdi", {}, withSpaces(nextText(id)));
        return element("span", { "data-id": id, class: id === token && "own" }, name);
      }),
    );
    if (at !== null) marker.style.left = `${100 * at}%`;
    marker.dataset.number = at === null ? "" : at.toFixed(3);
    marker.dataset.token = token === null ? "" : withSpaces(nextText(token));
    marker.classList.toggle("far", at > 0.5);
  }

  /** Show the moment `f` of the draw, from 0 to 1; null before it. */
  function render(f) {
    const g = f === null ? 0 : ease(f / STRETCHED);
    root.parentElement.classList.toggle("fallen", f >= FALLEN);
    if (g !== stretched) {
      rows.forEach((row, i) => {
        const { left, width } = shareAt(row, g);
        Object.assign(segments.children[i].style, {
          left: `${100 * left}%`,
          width: `${100 * width}%`,
          visibility: width > 0 ? "" : "hidden",
        });
      });
      stretched = g;
    }
    marker.hidden = place === null || f === null || !part(f);
    const fallen = clamp((f - STRETCHED) / (FALLEN - STRETCHED)) ** 2;
    marker.style.transform = `translateY(${((fallen - 1) * FALL).toFixed(1)}px)`;
  }

  return { root, show, render, says, part };
}
