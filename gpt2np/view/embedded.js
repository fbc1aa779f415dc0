import { createMachine } from "./machine.js";
import { arrayOf } from "./pass.js";
import { element, find, visible } from "./view.js";

const { pass: described } = JSON.parse(find("#data").textContent);
const { points = {}, details = {} } = described;
/** The numbers beyond the description: queries, keys and values, and the tokens. */
const source = {
  has: ({ kind, layer, id }) =>
    kind === "token" ? id in details : `blocks.${layer}.attn.q` in points,
  token: async (id) => details[id],
  points: async (_, names) =>
    Object.fromEntries(
      names.filter((name) => name in points).map((name) => [name, arrayOf(points[name])]),
    ),
};
const machine = createMachine(find("#machine"), { source });
machine.show(described);
const text = machine.pass.texts.map((each) => (each === "·" ? "" : visible(each))).join("");
if (!document.title.includes(text)) find("#machine").before(element("p", { dir: "auto" }, text));
find("#machine").append(machine.tables);
document.documentElement.dataset.ready = "true";
