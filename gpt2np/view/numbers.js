import { chipElement, dataElement, element, formatNumber } from "./view.js";

export const chipOf = (pass, id) => chipElement(pass.text(id), id);
export const nextChipOf = (pass, id) => chipElement(pass.nextText(id), id);
export const lineChipOf = (pass, line) => chipElement(pass.lineText(line), pass.lineIds[line]);

/** Vectors [name, numbers] as the columns of a table that scrolls, also by the keyboard. */
export function vectorTable(caption, parts) {
  const row = (kind, first, cells) =>
    element("tr", {}, element("th", {}, first), ...cells.map((each) => element(kind, {}, each)));
  const numbers = (i) =>
    parts.map(([, vector]) => dataElement(vector[i], formatNumber(vector[i], 5)));
  const names = parts.map(([name]) => name);
  const rows = Array.from(parts[0]?.[1] ?? [], (_, i) => row("td", String(i), numbers(i)));
  return element(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    element(
      "table",
      { class: "vectors" },
      element("caption", {}, caption),
      element("thead", {}, row("th", "number", names)),
      element("tbody", {}, ...rows),
    ),
  );
}
