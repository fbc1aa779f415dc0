// Parts of the model that are switched off, and what each does to the token that is looked at.

import { postJson } from "./api.js";
import { machine } from "./picture.js";
import { headColor } from "./stage.js";
import { changes, chip, partName, requestNext, state } from "./state.js";
import { setStatus, showError, writeAgain } from "./story.js";
import { $, button, element, formatNumber, percent, rovingFocus } from "./view.js";

const probability = ({ next }, token) => Math.exp(next.find(({ id }) => id === token).logprob);

let shown = /** @type {any} */ (null); // { described, token } of the pass in the picture

/** Switch a part off, or on again, and write the text with it. */
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

/** Show the parts of the model, for the pass in the picture; other effects are no longer true. */
export function renderParts(described, token) {
  shown = { described, token };
  const key = `${described.ids} ${token}`;
  if ($("parts").dataset.model !== state.model.id) build();
  if ($("parts").dataset.key !== key) {
    $("parts").dataset.key = key;
    $("effects-says").textContent = "";
    for (const cell of $("parts").querySelectorAll(".cell")) {
      cell.textContent = "";
      cell.style.removeProperty("--p");
    }
  }
  markCells();
}

/** Build the table: a row of squares for each block. */
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
  const titles = parts.map((part) => (part === "mlp" ? "neurons" : `head ${part}`));
  const head = titles.map((title) => element("th", { scope: "col" }, title));
  $("parts").replaceChildren(
    element("thead", {}, element("tr", {}, element("td"), ...head)),
    element("tbody", {}, ...rows),
  );
  Object.assign($("parts").dataset, { model: id, columns: n_head + 1 });
  focus.reset();
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const show = (event, head) => {
    machine.isolate(head);
    for (const each of $("heads").children)
      each.setAttribute("aria-pressed", String(each === event.target));
  };
  const heads = [null, ...Array(n_head).keys()].map((head) => {
    const name = head === null ? "all heads" : `head ${head}`;
    const pressed = { "aria-pressed": String(head === null) };
    const made = button(name, (event) => show(event, head), pressed);
    if (head !== null) made.style.borderBottomColor = headColor(head, isDark);
    return made;
  });
  $("heads").replaceChildren(...heads);
}

const focus = rovingFocus($("parts"), ".cell");

/** Switch every part off in turn, and show what happens to the probability of the token. */
async function showEffects() {
  const mine = shown;
  if (!mine) return;
  const context = mine.described.ids;
  const token = mine.token ?? mine.described.next[0].id;
  const before = probability(mine.described, token);
  const cells = [...$("parts").querySelectorAll(".cell")];
  $("all-off").disabled = true;
  const effects = [];
  try {
    for (const cell of cells) {
      const without = changes(new Set([...state.off, cell.dataset.part]));
      const body = { ...requestNext(context, [token], without), include: [] };
      const effect = probability(await postJson("api/inspect", body), token) - before;
      if (mine !== shown) {
        $("effects-says").textContent = "Not finished: another token is shown.";
        return;
      }
      effects.push(effect);
      const points = `${effect >= 0.0005 ? "+" : ""}${formatNumber(100 * effect, 1)}`;
      cell.textContent = points;
      cell.dataset.effect = String(effect);
      cell.classList.toggle("rises", effect >= 0);
      const label = `without ${partName(cell.dataset.part)}: ${points} percentage points`;
      Object.assign(cell, { title: label, ariaLabel: label });
      const most = Math.max(...effects.map(Math.abs), 1e-9); // the scale grows with what is found
      effects.forEach((each, i) =>
        cells[i].style.setProperty("--p", (Math.abs(each) / most).toFixed(4)),
      );
    }
    $("effects-says").replaceChildren(
      "Without each part, the probability of ",
      chip(token, context),
      ` is not ${percent(before)}, but so many percentage points more or less.`,
    );
  } finally {
    $("all-off").disabled = Boolean(state.running);
  }
}

export function startParts() {
  $("all-off").addEventListener("click", showEffects);
  $("parts-on").addEventListener("click", () => {
    state.off = new Set();
    markCells();
    writeAgain().catch(showError);
  });
}
