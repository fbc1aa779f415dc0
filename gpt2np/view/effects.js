// Every part switched off in turn: the map takes the colors of the real effects, cell by cell.

import { formatNumber } from "./view.js";

const points = (effect) => `${effect >= 0.0005 ? "+" : ""}${formatNumber(100 * effect, 1)}`;

/**
 * Color the cells of the map. `effectOf(part)` is what happens to a probability without the part, or null to stop;
 * `name(part)` is in words. Returns the label of the strongest effect, or null if it was stopped.
 */
export async function colorByEffects(cells, effectOf, name) {
  const effects = [];
  for (const cell of cells) cell.style.setProperty("--p", 0);
  for (const cell of cells) {
    const effect = await effectOf(cell.dataset.part);
    if (effect === null) return null;
    effects.push(effect);
    const label = `without ${name(cell.dataset.part)}: ${points(effect)} percentage points`;
    cell.classList.remove("plus", "minus");
    cell.classList.add(effect < 0 ? "plus" : "minus");
    cell.textContent = points(effect);
    Object.assign(cell, { title: label, ariaLabel: label });
    cell.dataset.effect = effect;
    const most = Math.max(...effects.map(Math.abs), 1e-9); // the scale grows with what is found
    effects.forEach((each, i) => cells[i].style.setProperty("--p", (Math.abs(each) / most).toFixed(4)));
  }
  const sizes = effects.map(Math.abs);
  return cells[sizes.indexOf(Math.max(...sizes))].title;
}
