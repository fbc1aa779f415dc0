import { nextChipOf } from "./numbers.js";
import { clamp, dataElement, ease, element, percent, shareElement, withSpaces } from "./view.js";

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

function says(pass, { token, drawn, was, instead }, f) {
  if (token === null) return ["A random number picks one of these."];
  const own = pass.next.find(({ id }) => id === token);
  const chip = nextChipOf(pass, token);
  if (own?.sampled === 1) return [chip, " has the whole ruler: no chance is left."];
  if (!part(f) && !was) {
    const [{ id, logprob, sampled }] = pass.next;
    const does = sampled > Math.exp(logprob) + 0.005 ? "The settings favor the likely: " : "";
    return [does, nextChipOf(pass, id), " gets ", shareElement(sampled), " of the ruler."];
  }
  if (drawn === null)
    return [chip, " came next", ...(own ? [": ", shareElement(own.sampled)] : []), "."];
  const number = dataElement(drawn, drawn.toFixed(3));
  const now = was
    ? ["The same number, ", number, ", now picks "]
    : ["Chance picks a number from 0 to 1: ", number, " hits "];
  if (part(f) < 2) return [...now, "…"];
  return was && instead !== null && instead !== token
    ? [...now, chip, ", not ", nextChipOf(pass, instead), "."]
    : [...now, chip, "."];
}

/** Point in the picture to what the sentence is about. */
function point(context, pass, place, colors, moment) {
  const { left, stop, strip, pitch, width, height } = place;
  const end = 1 + 2 * pass.n_layer; // of the blocks
  context.fillStyle = colors.paper;
  context.globalAlpha = 0.5 * clamp(moment - end);
  context.fillRect(0, 0, left(pass.n_layer - 1), height);
  context.fillRect(left(pass.n_layer - 1), 0, width, place.y(pass.count - 1) - pitch / 2);
  context.globalAlpha = 1;
  const above = place.y(pass.count - 1) - Math.min(24, pitch / 2);
  const passed = moment < 3 || moment > end ? 0 : Math.floor((moment - 1) / 2);
  Object.assign(context, { font: colors.font, strokeStyle: colors.paper, lineJoin: "round" });
  Object.assign(context, { fillStyle: colors.chance, lineWidth: 6, textBaseline: "middle" });
  for (let k = place.block > 90 ? 1 : Math.max(1, passed); k <= passed; k++) {
    const { ids, probabilities } = pass.lens[k];
    const guess = withSpaces(pass.nextText(ids[0]));
    const text = k < passed ? guess : `${guess} ${percent(probabilities[0])}`;
    const most = Math.max(86, place.block - 4);
    const right = width - Math.min(most, context.measureText(text).width);
    const at = /** @type {const} */ ([Math.min(stop(k) - strip / 2, right), above, most]);
    context.strokeText(text, ...at);
    context.fillText(text, ...at);
  }
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

  return { root, show, render, says, part, point, question: ["The next token (a word or piece)"] };
}
