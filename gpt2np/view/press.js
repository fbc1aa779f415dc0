import { chipText, numberElement } from "./scenes.js";
import { arcsOf, between, neuronsOf } from "./stage.js";
import { shareElement, times } from "./view.js";

function distance(points, x, y) {
  const far = (f) => {
    const [a, b, c] = [0, 1, 2].map((i) => between(points[i], points[i + 1], f));
    const [x1, y1] = between(between(a, b, f), between(b, c, f), f);
    return Math.hypot(x1 - x, y1 - y);
  };
  return Math.min(...times(97, (i) => far(i / 96)));
}

/** The arc or the neuron of the line that is looked at, at a point of the picture; or null. */
function partAt(pass, place, view, layer, x, y) {
  const { line } = view;
  const dot = neuronsOf(pass, place, view, layer, line).find(
    (each) => Math.hypot(each.x - x, each.y - y) < Math.max(6, each.radius + 2),
  );
  if (dot) return dot;
  const arcs = times(pass.n_head, (head) => arcsOf(pass, place, layer, head, line))
    .flat()
    .map((arc) => ({ ...arc, far: distance(arc.points, x, y) - 4 * arc.weight })); // its edge
  const nearest = arcs.reduce((a, b) => (a && a.far <= b.far ? a : b), null);
  return nearest && nearest.far < 7 ? nearest : null;
}

/** The part under a point of a block, with what it says; or null. */
export function findPart(pass, place, view, layer, x, y, canSwitch) {
  const found = /** @type {any} */ (partAt(pass, place, view, layer, x, y));
  if (!found) return null;
  const says = sayPart(pass, view, found, canSwitch);
  const arc = found.neuron === undefined ? found : null;
  return { ...(canSwitch && { part: found.part }), arc, says };
}

function sayPart(pass, view, { part, neuron, activation, key, weight }, canSwitch) {
  const [layer, name] = part.split(",");
  const isOff = view.off.has(part);
  const does = canSwitch ? ` Press: switch it ${isOff ? "on" : "off"}.` : "";
  if (neuron !== undefined) {
    const says = isOff ? " is off." : [": ", numberElement(activation), "."];
    return [`neuron ${neuron} of block ${layer}`, ...says, does];
  }
  const to = key === null ? "tokens before" : chipText(pass, key);
  const head = `head ${name} of block ${layer}: `;
  return [head, `${chipText(pass, view.line)} → ${to} `, shareElement(weight), ".", does];
}
