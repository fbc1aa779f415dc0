// Look inside: contributions of heads and MLPs, and switching off.

import { post, postJson } from "./api.js";
import {
  $,
  button,
  dataElement,
  element,
  find,
  formatNumber,
  percent,
  rovingFocus,
  shareElement,
} from "./view.js";

/** A part by its key, "layer,head" or "layer,mlp": a block and a head, or null for the MLP. */
const partOf = (key) => {
  const [layer, head] = key.split(",");
  return { layer: Number(layer), head: head === "mlp" ? null : Number(head) };
};
const keyOf = ({ layer, head }) => `${layer},${head ?? "mlp"}`;
function nameOf(key) {
  const { layer, head } = partOf(key);
  return head === null ? `the MLP of block ${layer}` : `head ${head} of block ${layer}`;
}
const points = (effect) => `${effect >= 0.0005 ? "+" : ""}${formatNumber(100 * effect, 1)}`;

/** The probability of a token in an answer of the server. */
const probability = ({ next }, token) => Math.exp(next.find(({ id }) => id === token).logprob);

export function createInside(page) {
  const root = $("inside-content");
  /** The selected part of the model: a block, and a head (null: the MLP). Factors by part. */
  const chosen = { layer: null, head: 0 };
  const factors = new Map(); // "layer,head" → factor; head "mlp"
  let shown = null; // { model, context, token, rival, answer, edited }
  let number = 0;

  async function show(context, token, asked, plays) {
    const [mine, model] = [++number, page.state.model];
    if (!context.length)
      return clear(
        "This is the first token: the model has read nothing before it. Click a later token.",
      );
    root.setAttribute("aria-busy", "true");
    try {
      const answer = await asked;
      // the panels show it
      if (mine !== number || (answer === shown?.answer && !shown.edited && !factors.size)) return;
      const [first, second] = answer.tokens;
      const target = token ?? first;
      shown = {
        model,
        context,
        token: target,
        isNext: token === null,
        rival: answer.tokens.find((id) => id !== target) ?? second,
        answer,
        edited: null,
      };
      if (chosen.layer === null || chosen.layer >= model.n_layer) chosen.layer = model.n_layer - 1;
      if (chosen.head >= model.n_head) chosen.head = 0;
      render();
      if (factors.size) await showChanges(mine, plays);
    } finally {
      if (mine === number) root.removeAttribute("aria-busy");
    }
  }

  // ---- the parts of the section

  function render() {
    const { model, token, rival, isNext, context, answer } = shown;
    const p = probability(answer, token);
    root.replaceChildren(
      element(
        "p",
        { class: "says" },
        "The model has read ",
        page.endOf(context),
        isNext ? ". Its best guess is " : " and then came ",
        nextChip(token),
        ` (${percent(p)}). `,
        "Its strongest rival is ",
        nextChip(rival),
        ". Here is what happened inside.",
      ),
      element(
        "div",
        { class: "inside-grid" },
        element("div", { class: "panel", id: "parts-panel" }),
        element("div", { class: "panel", id: "edit-panel" }),
        element("div", { class: "panel", id: "explain-panel" }, ...explainPart()),
      ),
    );
    renderParts();
    renderEdit();
    root.dataset.model = model.id;
  }

  const nextChip = (id) => page.chip(id, shown.context);

  /** Say that there is nothing to look into. */
  function clear(hint) {
    number += 1;
    shown = null;
    root.replaceChildren(element("p", { class: "hint" }, hint));
  }

  function select(key) {
    Object.assign(chosen, partOf(key));
    for (const cell of root.querySelectorAll(".cell"))
      cell.setAttribute("aria-pressed", String(cell.dataset.part === key));
    page.machine.openBlock(chosen.layer);
    renderEdit();
    page.save();
  }

  // ---- contributions

  /** Contribution of each part to the logit of the token minus that of the rival. */
  function contributions() {
    const { answer, token, rival, model } = shown;
    const { components, values } = answer.attribution;
    const [a, b] = [answer.tokens.indexOf(token), answer.tokens.indexOf(rival)];
    const of = new Map(components.map((name, i) => [name, values[i][a] - values[i][b]]));
    const grid = Array.from({ length: model.n_layer }, (_, layer) => [
      ...Array.from({ length: model.n_head }, (_, head) => ({
        key: `${layer},${head}`,
        value: of.get(`blocks.${layer}.attn.head.${head}`),
      })),
      {
        key: `${layer},mlp`,
        value: of.get(`blocks.${layer}.mlp`) + of.get(`blocks.${layer}.mlp.c_proj.bias`),
      },
    ]);
    const total = answer.attribution.logits[a] - answer.attribution.logits[b];
    const inGrid = grid.flat().reduce((sum, cell) => sum + cell.value, 0);
    return { grid, total, rest: total - inGrid };
  }

  function renderParts() {
    const { model, token, rival } = shown;
    const { grid, total, rest } = contributions();
    const cells = grid.flat();
    const most = Math.max(...cells.map((cell) => Math.abs(cell.value)), 1e-9);
    const sorted = [...cells].sort((a, b) => b.value - a.value);
    const list = (some) =>
      (some.length ? some : [null]).flatMap((cell, i) => [
        i ? ", " : "",
        cell ? `${nameOf(cell.key)} (${formatNumber(cell.value)})` : "none",
      ]);
    const body = grid.map((row, layer) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, `block ${layer}`),
        ...row.map(({ key, value }) => {
          const label = `${nameOf(key)}: ${formatNumber(value)}${factors.has(key) ? `, set to ${factors.get(key)} times` : ""}`;
          return element(
            "td",
            {},
            button(formatNumber(value, 1), () => select(key), {
              class: `cell ${value < 0 ? "minus" : "plus"}${factors.has(key) ? " edited" : ""}`,
              "data-part": key,
              "data-value": value,
              tabindex: key === keyOf(chosen) ? 0 : -1,
              "aria-pressed": String(key === keyOf(chosen)),
              "aria-label": label,
              title: label,
              p: Math.abs(value) / most,
            }),
          );
        }),
      ),
    );
    const table = element(
      "table",
      { class: "parts", "data-columns": model.n_head + 1 },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          element("td"),
          ...Array.from({ length: model.n_head }, (_, i) =>
            element("th", { scope: "col" }, `head ${i}`),
          ),
          element("th", { scope: "col" }, "MLP"),
        ),
      ),
      element("tbody", {}, ...body),
    );
    rovingFocus(table, ".cell");
    find("#parts-panel", root).replaceChildren(
      element("h3", {}, "Who pushed for it?"),
      element(
        "p",
        { class: "hint", id: "parts-hint" },
        `Each block has ${model.n_head} heads and an MLP. A head looks back at earlier tokens and brings something along from them; this is called attention. The MLP then works on each token alone. A number says how hard a part pushed: `,
        element("span", { class: "key plus" }, "blue"),
        " for ",
        nextChip(token),
        ", ",
        element("span", { class: "key minus" }, "orange"),
        " for its rival ",
        nextChip(rival),
        ". Press a part to look at it.",
      ),
      element("div", { class: "wide" }, table),
      element(
        "div",
        { class: "buttons" },
        button("Switch every part off in turn", switchAllOff, { id: "all-off" }),
      ),
      element("p", { class: "facts", id: "effects-says", role: "status" }),
      element(
        "p",
        { class: "facts" },
        "Most for ",
        nextChip(token),
        ": ",
        ...list(sorted.slice(0, 2).filter(({ value }) => value > 0)),
        ". Most for ",
        nextChip(rival),
        ": ",
        ...list(
          sorted
            .slice(-2)
            .reverse()
            .filter(({ value }) => value < 0),
        ),
        ".",
      ),
      element(
        "p",
        { class: "hint" },
        "All parts add up to ",
        dataElement(total - rest, formatNumber(total - rest)),
        "; with ",
        dataElement(rest, formatNumber(rest)),
        " from the last token read (the embedding) and fixed numbers (biases), the sum is ",
        dataElement(total, formatNumber(total)),
        ", the difference of the two tokens’ scores (logits). Researchers call this direct logit attribution.",
      ),
    );
  }

  // ---- every part switched off in turn: the effect that is real

  async function switchAllOff() {
    const mine = shown;
    const { context, token, answer } = mine;
    const before = probability(answer, token);
    const cells = [...root.querySelectorAll(".cell")];
    $("all-off").disabled = true;
    $("effects-says").textContent = "Switching off one part after the other…";
    for (const cell of cells) cell.style.setProperty("--p", 0);
    try {
      const effects = [];
      for (const cell of cells) {
        const edited = await postJson(
          "api/inspect",
          page.requestNext(context, token, {
            include: [],
            interventions: interventions([[cell.dataset.part, 0]]),
          }),
        );
        if (mine !== shown) return;
        effects.push(probability(edited, token) - before);
        showEffect(cell, effects.at(-1));
        const most = Math.max(...effects.map(Math.abs), 1e-9); // the scale grows with what is found
        effects.forEach((each, i) =>
          cells[i].style.setProperty("--p", (Math.abs(each) / most).toFixed(4)),
        );
      }
      find("#parts-hint", root).replaceChildren(
        "A number says by how many percentage points the probability of ",
        nextChip(token),
        ` (${percent(before)}) changes without this part: `,
        element("span", { class: "key plus" }, "blue"),
        " means that it falls, ",
        element("span", { class: "key minus" }, "orange"),
        " that it rises.",
      );
      const sizes = effects.map(Math.abs);
      $("effects-says").textContent =
        `Largest effect: ${cells[sizes.indexOf(Math.max(...sizes))].title}.`;
      find("#parts-panel h3", root).textContent = "What happens without it?";
      $("all-off").replaceWith(
        button(
          "Show the pushes again",
          () => {
            renderParts();
            $("all-off").focus();
          },
          { id: "pushes" },
        ),
      );
    } catch (error) {
      if (mine === shown) renderParts();
      throw error;
    }
  }

  /** Color a cell of the map by what happens to the probability without its part. */
  function showEffect(cell, effect) {
    const label = `without ${nameOf(cell.dataset.part)}: ${points(effect)} percentage points`;
    cell.classList.remove("plus", "minus");
    cell.classList.add(effect < 0 ? "plus" : "minus");
    cell.textContent = points(effect);
    cell.dataset.effect = effect;
    Object.assign(cell, { title: label, ariaLabel: label });
  }

  // ---- switching off

  /** The interventions of a request: parts with another strength, and steering. */
  const interventions = (changes = [...factors]) => [
    ...(page.steering.fields().interventions ?? []),
    ...changes.map(([key, factor]) => {
      const { layer, head } = partOf(key);
      return head === null
        ? { point: `blocks.${layer}.mlp.out`, factor }
        : { point: `blocks.${layer}.attn.z`, heads: [head], factor };
    }),
  ];

  async function setFactor(key, factor) {
    if (factor === 1) factors.delete(key);
    else factors.set(key, factor);
    await showChanges(++number);
    page.save();
  }

  /** Show the pass with the changed parts, unless another request has come since number `mine`. */
  async function showChanges(mine, plays = false) {
    const { context, isNext, token, answer } = shown;
    const edited = factors.size
      ? await postJson(
          "api/inspect",
          page.requestNext(context, token, {
            include: ["lens", "neurons", "lines"],
            interventions: interventions(),
          }),
        )
      : null;
    if (mine !== number) return;
    shown.edited = edited;
    page.showMachine(edited ?? answer, isNext ? null : token, plays, {
      off: [...factors].filter(([, each]) => each === 0).map(([key]) => key),
      ...(edited && {
        title: "With the changed parts: before (gray) → now",
        isChanged: true,
        was: answer.next,
      }),
    });
    for (const button of root.querySelectorAll(".cell"))
      button.classList.toggle("edited", factors.has(button.dataset.part));
    renderEditResult();
  }

  function renderEdit() {
    const key = keyOf(chosen);
    const slider = element("input", {
      type: "range",
      id: "factor",
      min: 0,
      max: 2,
      step: 0.1,
      value: factors.get(key) ?? 1,
      "aria-describedby": "factor-help",
    });
    const output = element("output", {}, String(slider.value));
    slider.addEventListener("input", () => {
      output.value = slider.value;
    });
    slider.addEventListener("change", () => setFactor(key, Number(slider.value)));
    const set = (value) => {
      slider.value = value;
      output.value = value;
      setFactor(key, value);
    };
    find("#edit-panel", root).replaceChildren(
      element("h3", {}, "What if it were switched off?"),
      element("label", { class: "slide" }, `Strength of ${nameOf(key)}: `, output, slider),
      element(
        "p",
        { class: "hint", id: "factor-help" },
        "0 is off, 1 is normal, 2 is double. This changes the picture and the numbers, not the text. If they hardly move, the other parts do the work without this one.",
      ),
      element(
        "div",
        { class: "buttons" },
        button("Switch it off", () => set(0), { id: "switch-off" }),
        button("Normal", () => set(1), { id: "normal" }),
        button("Reset all parts", reset, { id: "reset" }),
      ),
      element("div", { id: "edit-result", "aria-live": "polite" }),
    );
    renderEditResult();
  }

  /** What the change did to the token; the Machine shows what it did to the others. */
  function renderEditResult() {
    const { answer, edited, token } = shown;
    const result = find("#edit-result", root);
    if (!edited) {
      result.replaceChildren(
        element("p", { class: "facts" }, factors.size ? "Computing…" : "All parts work normally."),
      );
      return;
    }
    const names = [...factors].map(([key, factor]) => `${nameOf(key)} × ${factor}`);
    const best = edited.next[0];
    result.replaceChildren(
      element("p", { class: "facts" }, `Changed: ${names.join("; ")}.`),
      element(
        "p",
        { class: "says" },
        "The model’s probability of ",
        nextChip(token),
        " was ",
        shareElement(probability(answer, token)),
        ". Now it is ",
        shareElement(probability(edited, token)),
        ...(best.id === token
          ? [", and no token is likelier."]
          : [
              "; the likeliest is ",
              nextChip(best.id),
              " with ",
              shareElement(Math.exp(best.logprob)),
              ".",
            ]),
      ),
    );
  }

  // ---- the explain page

  function explainPart() {
    const { context, model } = shown;
    const limit = model.max_explained_tokens;
    const says = element(
      "p",
      { class: "hint", role: "status" },
      context.length > limit
        ? `Opens a page about the last ${limit} tokens alone, so its numbers differ from these.`
        : "Opens the whole explain page for exactly these tokens.",
    );
    const open = async () => {
      const tab = window.open("about:blank", "_blank");
      says.textContent = "Computing the page…";
      try {
        const html = await (
          await post("api/explain", { model: model.id, prompt: context.slice(-limit) })
        ).text();
        const url = URL.createObjectURL(new Blob([html], { type: "text/html;charset=utf-8" }));
        if (tab) tab.location = url;
        says.replaceChildren(element("a", { href: url, target: "_blank" }, "Open the page again"));
      } catch (error) {
        tab?.close();
        says.textContent = error.message;
      }
    };
    return [
      element("h3", {}, "Every number of it"),
      element(
        "p",
        { class: "hint" },
        "How text becomes numbers, one attention score multiplied out, every block and every probability: a page to read at leisure, which you can keep as a file.",
      ),
      element("div", { class: "buttons" }, button("Explain this step", open, { id: "explain" })),
      says,
    ];
  }

  /** Switch a part ("layer,head" or "layer,mlp") off, or on again. */
  function toggle(key) {
    if (!shown) return null;
    select(key);
    return setFactor(key, factors.get(key) === 0 ? 1 : 0);
  }

  /** All parts work normally again. */
  function reset() {
    const hadSome = factors.size;
    factors.clear();
    if (!hadSome || !shown) return;
    renderEdit();
    setFactor(keyOf(chosen), 1);
  }

  return {
    show,
    clear,
    chosen,
    factors,
    toggle,
    changes: () => ({ interventions: interventions() }),
  };
}
