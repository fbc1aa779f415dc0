// The share card: a picture of the text, each token with its probability.

import { percent, visible } from "./view.js";

const [WIDTH, HEIGHT, EDGE] = [1200, 630, 56];
const SIZES = [52, 46, 40, 34, 28, 24, 20]; // of letters; the largest that fits
const SERIF = 'Charter, "Bitstream Charter", Georgia, "DejaVu Serif", serif';
const SANS = 'system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const [PAPER, INK, SOFT] = ["#fdfcfa", "#20242a", "#5a616b"];

/** Break tokens, { text, p }, into lines of a width; `measure(piece)` is a token's own width. */
export function layCard(pieces, width, pitch, measure) {
  let [x, y] = [0, 0];
  return pieces.map((piece) => {
    const w = measure(piece);
    if (x && x + w > width) [x, y] = [0, y + pitch];
    const placed = { ...piece, x, y, w };
    [x, y] = piece.text.endsWith("\n") ? [0, y + pitch] : [x + w, y];
    return placed;
  });
}

/** The tokens with places, in the largest letters in which all fit; of a long text the end. */
function fitCard(context, pieces) {
  const height = HEIGHT - 2 * EDGE - 40;
  for (let shown = pieces; ; shown = [{ text: "… ", p: null }, ...pieces.slice(1 - Math.floor(0.8 * shown.length))]) {
    for (const size of SIZES) {
      const measure = ({ text, p }) => {
        context.font = `${size}px ${SERIF}`;
        const own = context.measureText(visible(text.replace(/\n$/, ""))).width;
        context.font = `${0.42 * size}px ${SANS}`;
        return p === null ? own : Math.max(own, context.measureText(percent(p)).width + 6);
      };
      const items = layCard(shown, WIDTH - 2 * EDGE, 1.75 * size, measure);
      if (items.every(({ y }) => y + 1.75 * size <= height)) return { items, size };
    }
    if (shown.length < 3) return { items: [], size: SIZES[0] };
  }
}

/** Return a canvas with the tokens { text, p } of a text (`p` is null for the prompt's) and a line below it. */
export function paintCard(pieces, facts, direction = "ltr") {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [WIDTH, HEIGHT];
  const context = canvas.getContext("2d");
  context.fillStyle = PAPER;
  context.fillRect(0, 0, WIDTH, HEIGHT);
  context.direction = direction;
  context.textBaseline = "alphabetic";
  const { items, size } = fitCard(context, pieces);
  for (const { text, p, x, y, w } of items) {
    const left = direction === "rtl" ? WIDTH - EDGE - x - w : EDGE + x;
    const top = EDGE + y;
    context.textAlign = "left";
    if (p !== null) {
      context.fillStyle = `rgb(31 104 199 / ${(0.42 * p).toFixed(3)})`;
      context.fillRect(left, top, w, 1.2 * size);
      context.fillStyle = "rgb(31 104 199 / .35)";
      context.fillRect(left, top + 1.2 * size, w - 1, 2);
      context.fillStyle = SOFT;
      context.font = `${0.42 * size}px ${SANS}`;
      context.fillText(percent(p), left + 2, top + 1.66 * size);
    }
    context.fillStyle = p === null ? SOFT : INK;
    context.font = `${size}px ${SERIF}`;
    context.fillText(visible(text.replace(/\n$/, "")), left, top + 0.95 * size);
  }
  context.direction = "ltr";
  context.fillStyle = SOFT;
  context.font = `22px ${SANS}`;
  context.fillText(facts, EDGE, HEIGHT - 36, WIDTH - 2 * EDGE);
  return canvas;
}
