import { headColor } from "./stage.js";
import { partName, state } from "./state.js";
import { setStatus, showError, writeAgain } from "./story.js";
import { $, button, element, rovingFocus } from "./view.js";

export async function toggle(key) {
  const off = new Set(state.off);
  if (!off.delete(key)) off.add(key);
  state.off = off;
  markCells();
  setStatus("Writing…");
  await writeAgain().catch(showError);
}

function markCells() {
  for (const cell of $("parts").querySelectorAll(".cell"))
    cell.setAttribute("aria-pressed", String(state.off.has(cell.dataset.part)));
  $("parts-on").disabled = !state.off.size;
}

export function renderParts() {
  if ($("parts").dataset.model !== state.model.id) build();
  markCells();
}

function build() {
  const { n_layer, n_head, id } = state.model;
  const parts = [...Array.from({ length: n_head }, (_, head) => String(head)), "mlp"];
  const cell = (layer, part) =>
    button("", () => toggle(`${layer},${part}`), {
      ...{ class: "cell", "data-part": `${layer},${part}`, tabindex: -1 },
      "aria-label": partName(`${layer},${part}`),
    });
  const rows = Array.from({ length: n_layer }, (_, layer) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, `block ${layer}`),
      ...parts.map((part) => element("td", {}, cell(layer, part))),
    ),
  );
  const isMany = n_head > 8;
  $("parts").classList.toggle("many", isMany);
  const titles = parts.map((part) => (part === "mlp" ? "neurons" : isMany ? part : `head ${part}`));
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const colored = (made, head) => {
    made.style.borderBottomColor = headColor(head, isDark);
    return made;
  };
  const head = titles.map((title, i) => {
    const made = element("th", { scope: "col" }, title);
    return i < n_head ? colored(made, i) : made;
  });
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
