// How a tokenizer is made: merges of bytes, learned from the reader's text, one after the other.

import { button, chipElement, decodeToken, element, withSpaces } from "./view.js";

const N_SHOWN = 700; // tokens of the text
const N_LISTED = 12; // merges

/** Merge the neighbours `left` and `right` in a piece. A token is a string with a character for each byte. */
function mergePair(tokens, left, right) {
  const merged = [];
  for (let i = 0; i < tokens.length; i++) {
    const isPair = tokens[i] === left && tokens[i + 1] === right;
    merged.push(isPair ? left + right : tokens[i]);
    if (isPair) i += 1;
  }
  return merged;
}

const lengthOf = (pieces) => pieces.reduce((sum, tokens) => sum + tokens.length, 0);

/** All moments of the learning: the tokens of each piece before the first merge, and after each one. */
function momentsOf({ merges, pieces }) {
  const pairs = merges.map((sides) => sides.map(atob));
  const moments = [pieces.map((piece) => Array.from(new TextEncoder().encode(piece), (byte) => String.fromCharCode(byte)))];
  for (const [left, right] of pairs) moments.push(moments.at(-1).map((tokens) => (tokens.includes(left) ? mergePair(tokens, left, right) : tokens)));
  return { pairs, moments, lengths: moments.map(lengthOf) };
}

const textOf = (token) => decodeToken(Uint8Array.from(token, (c) => c.charCodeAt(0)));
const nameOf = (token) => withSpaces(textOf(token));
const chipOf = (token) => chipElement(textOf(token));

/** Build the panel in `root`; `learn(text)` gives merges and pieces. */
export function createBpe(root, learn) {
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  let learned = null;
  let at = 0;
  let timer = null;
  const text = element("textarea", { id: "bpe-text", rows: 3, maxlength: 5000, dir: "auto", spellcheck: "false", "aria-label": "The text to learn from" });
  text.value = "the cat sat on the mat, and the other cat sat on that hat. the rat saw that the cats sat there.";
  const play = button("Play", () => (timer ? pause() : start()), { id: "bpe-play", disabled: true });
  const back = button("‹ Step", () => go(at - 1), { id: "bpe-back", disabled: true });
  const forth = button("Step ›", () => go(at + 1), { id: "bpe-step", disabled: true });
  const range = element("input", { type: "range", id: "bpe-moment", min: 0, value: 0, disabled: true, "aria-label": "Number of merges" });
  const says = element("p", { class: "facts", id: "bpe-says", role: "status" });
  const tokens = element("div", { class: "bpe-tokens", id: "bpe-tokens", dir: "auto", role: "group", tabindex: 0, "aria-label": "The text as tokens" });
  const list = element("ol", { id: "bpe-merges", class: "bpe-merges", "aria-label": "The latest merges" });
  const form = element("form", { id: "bpe-form" }, text, element("div", { class: "buttons" }, element("button", { id: "bpe-learn", class: "primary" }, "Learn from this text"), back, play, forth, range));
  root.replaceChildren(form, says, tokens, list);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    pause();
    if (!text.value) { says.textContent = "Paste a text first."; return; }
    says.textContent = "Learning…";
    try {
      learned = momentsOf(await learn(text.value));
    } catch (error) {
      says.textContent = error.message;
      return;
    }
    range.max = learned.pairs.length;
    at = 0;
    show();
    if (!reducedMotion.matches) start();
  });
  range.addEventListener("input", () => { pause(); go(Number(range.value)); });

  function start() {
    if (!learned?.pairs.length) return;
    if (at >= learned.pairs.length) at = -1;
    play.textContent = "Pause";
    const next = () => {
      at += 1;
      show();
      if (at >= learned.pairs.length) pause();
      else timer = setTimeout(next, Math.max(60, 900 / (1 + at / 6))); // the first ones are read, the later ones fly
    };
    timer = setTimeout(next, 0);
  }

  function pause() {
    clearTimeout(timer);
    timer = null;
    play.textContent = "Play";
  }

  function go(number) {
    if (timer) pause();
    at = Math.min(learned.pairs.length, Math.max(0, number));
    show();
  }

  function show() {
    const { pairs, moments, lengths } = learned;
    const newest = at ? pairs[at - 1].join("") : null;
    for (const each of [play, range]) each.disabled = !pairs.length;
    back.disabled = at === 0;
    forth.disabled = at >= pairs.length;
    range.value = at;
    const flat = moments[at].flatMap((piece, i) => piece.map((token) => ({ token, i })));
    tokens.replaceChildren(...flat.slice(0, N_SHOWN).map(({ token, i }) => element("bdi", { class: `token t${i % 5}${token === newest ? " new" : ""}` }, nameOf(token))),
      ...(flat.length > N_SHOWN ? [` … and ${(flat.length - N_SHOWN).toLocaleString("en")} more`] : []));
    list.replaceChildren(...pairs.slice(Math.max(0, at - N_LISTED), at).reverse().map(([left, right], i) => element("li", { value: at - i },
      chipOf(left), " + ", chipOf(right), " → ", chipOf(left + right))));
    const [start, n] = [lengths[0], lengths[at]];
    Object.assign(root.dataset, { at, tokens: n });
    if (!pairs.length) says.textContent = "No pair of neighbours stands there twice, so there is nothing to merge. Paste a longer text.";
    else if (!at) says.textContent = `${n.toLocaleString("en")} bytes, each a token of its own. The pair of neighbours that stands there most often becomes one token; then the count begins anew. A merge never crosses a gap between words.`;
    else {
      const [left, right] = pairs[at - 1];
      says.textContent = `Merge ${at} of ${pairs.length}: “${nameOf(left)}” and “${nameOf(right)}” stood side by side ${lengths[at - 1] - n} times and become “${nameOf(left + right)}”. ${start.toLocaleString("en")} bytes are ${n.toLocaleString("en")} tokens now, ${(start / n).toFixed(1)} bytes each.`;
    }
  }
}
