// Starts the Machine on a page that contains the description of its pass.

import { createMachine } from "./machine.js";
import { MERGES } from "./merges.js";
import { SECTIONS } from "./numbers.js";
import { find } from "./view.js";

const described = JSON.parse(find("#data").textContent).pass;
/** The numbers beyond the description: queries, keys and values, if the page holds them. */
const source = described.points && {
  has: ({ kind }) => kind === "score",
  points: async (pass, names) =>
    Object.fromEntries(names.map((name) => [name, pass.point(name)]).filter(([, array]) => array)),
};
const sections = described.pieces ? [...SECTIONS, MERGES] : SECTIONS;
const machine = createMachine(find("#machine"), { sections, source });
machine.show(described, { token: described.draw?.id ?? null });

// After the first picture: the tables take longer.
requestAnimationFrame(() =>
  setTimeout(() => {
    find("main").append(machine.panels);
    machine.openBlock(0);
    document.documentElement.dataset.ready = "true";
  }),
);
/** @type {HTMLDetailsElement[]} */
let closed = [];
addEventListener("beforeprint", () => {
  closed = [.../** @type {any} */ (document.querySelectorAll("details:not([open])"))];
  for (const each of closed) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of closed) each.open = false;
});
