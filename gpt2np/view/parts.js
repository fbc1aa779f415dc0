import { readPass } from "./pass.js";
import { machine } from "./picture.js";
import { headColor } from "./stage.js";
import { askNext, idsOf, partName, readSettings, state } from "./state.js";
import { showError, writeAgain } from "./story.js";
import { $, button, element, rovingFocus, times } from "./view.js";

export async function toggle(key) {
  const off = new Set(state.off);
  if (!off.delete(key)) off.add(key);
  state.off = off;
  markCells();
  await writeAgain().catch(showError);
}

function markCells() {
  for (const cell of $("parts").querySelectorAll(".cell"))
    cell.setAttribute("aria-pressed", String(state.off.has(cell.dataset.part)));
  $("parts-on").disabled = !state.off.size;
  if (state.off.size) $("try-part").hidden = true;
}

let asked = 0;

/** Offer the head that looks back most of those without which another token is drawn. */
async function suggest() {
  const mine = ++asked;
  const { start, seed } = state.lastRun ?? { start: null, seed: readSettings().seed };
  const context = start ? idsOf(start) : machine.pass.ids;
  const draw = { seed, n_drawn: 0 };
  const model = state.model.id; // the page may get another model meanwhile
  const ask = (...off) => askNext(context, null, { draw, model, off: new Set(off) });
  const whole = await ask();
  const pass = readPass(whole);
  const keys = Array.from(
    { length: pass.n_layer },
    (_, layer) => pass.looks(layer, pass.count - 1)[0],
  )
    .filter(Boolean)
    .sort((a, b) => b.weight - a.weight)
    .map(({ part }) => part);
  let [found] = keys;
  for (const key of keys) {
    const isOther = (await ask(key)).draw.id !== whole.draw.id;
    if (mine !== asked || state.running || state.model.id !== model) return;
    if (isOther) {
      found = key;
      break;
    }
  }
  $("try-part").hidden = !found || state.off.size > 0;
  $("try-part").textContent = found && `Try ${partName(found)} ▷`;
  $("try-part").onclick = () => toggle(found);
}

export function renderParts() {
  if ($("parts").dataset.model !== state.model.id) build();
  markCells();
  if (machine.pass && !$("off").hidden && !state.running && !state.off.size) suggest();
}

function build() {
  const { n_layer, n_head, id } = state.model;
  const parts = [...times(n_head, String), "mlp"];
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const colored = (made, i) => {
    if (i < n_head) made.style.setProperty("--head", headColor(i, isDark));
    return made;
  };
  const cell = (layer, part) =>
    button("", () => toggle(`${layer},${part}`), {
      ...{ class: "cell", "data-part": `${layer},${part}`, tabindex: -1 },
      "aria-label": partName(`${layer},${part}`),
    });
  const rows = times(n_layer, (layer) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, `block ${layer}`),
      ...parts.map((part, i) => element("td", {}, colored(cell(layer, part), i))),
    ),
  );
  const isMany = n_head > 8;
  $("parts").classList.toggle("many", isMany);
  const titles = parts.map((part) => (part === "mlp" ? "neurons" : isMany ? part : `head ${part}`));
  const head = titles.map((title, i) => colored(element("th", { scope: "col" }, title), i));
  $("parts").replaceChildren(
    element("thead", {}, element("tr", {}, element("td"), ...head)),
    element("tbody", {}, ...rows),
  );
  Object.assign($("parts").dataset, { model: id, columns: n_head + 1 });
  focus.reset();
}

const focus = rovingFocus($("parts"), ".cell");

export function startParts() {
  $("parts-on").addEventListener("click", () => {
    state.off = new Set();
    markCells();
    writeAgain().catch(showError);
  });
}
