// Steering: a direction between two lists of words, added while the model writes.

import { once } from "./api.js";
import { decodeArray } from "./pass.js";
import { $, button, element, formatNumber } from "./view.js";

const MOST = 1.5; // times the direction; beyond, texts repeat themselves
const WORDS = {
  a: "the sea, a ship, the waves, a sailor, the shore",
  b: "the forest, a tree, the wood, a hunter, the hill",
};

/** Build the panel in `root`. `onChange()` is called when the model works in another way now. */
export function createSteering(page, root, onChange) {
  let found = null; // { point, vector }
  let number = 0;
  let told = "{}"; // the fields of a request when `onChange` was last called
  const field = (id, label, value) =>
    element(
      "label",
      {},
      label,
      element("input", { type: "text", id, value, maxlength: 400, autocomplete: "off" }),
    );
  const says = element("p", { class: "facts", id: "steer-says", role: "status" });
  const output = element("output", { id: "steer-value" }, "0");
  root.replaceChildren(
    element(
      "div",
      { class: "steer-words" },
      field("steer-b", "From these words", WORDS.b),
      field("steer-a", "to these", WORDS.a),
      element("label", {}, "after block", element("select", { id: "steer-block" })),
    ),
    element(
      "label",
      { class: "slide" },
      "Strength ",
      output,
      element("input", {
        type: "range",
        id: "steer",
        min: -MOST,
        max: MOST,
        step: 0.1,
        value: 0,
        list: "steer-middle",
      }),
    ),
    element("datalist", { id: "steer-middle" }, element("option", { value: 0 })),
    element(
      "div",
      { class: "buttons" },
      button(
        "No steering",
        () => {
          $("steer").value = 0;
          update();
        },
        { id: "steer-off" },
      ),
    ),
    says,
  );
  const strength = () => Number($("steer").value);
  const words = (side) =>
    $(`steer-${side}`)
      .value.split(",")
      .map((word) => word.trim())
      .filter(Boolean);
  const signed = (value) => `${value > 0 ? "+" : ""}${formatNumber(value, 1)}`;

  /** Fill the list of blocks for the page's model. */
  function build() {
    const { n_layer: count } = page.state.model;
    if ($("steer-block").options.length !== count) {
      $("steer-block").replaceChildren(
        ...Array.from({ length: count }, (_, i) => element("option", { value: i }, String(i))),
      );
      $("steer-block").value = Math.floor(count / 2);
    }
    return ready();
  }

  /**
   * Ask for the direction of the words, unless it is there; tell whether the slider can have its
   * effect.
   */
  async function ready() {
    const mine = ++number;
    output.value = signed(strength());
    try {
      if (strength()) await load();
    } catch (error) {
      found = null;
      if (mine === number) says.textContent = error.message;
      page.setStatus(`Steering: ${error.message}`, true);
      return false;
    }
    if (mine === number) say();
    return true;
  }

  async function load() {
    if (!words("a").length || !words("b").length)
      throw new Error("Give at least one word on each side.");
    const body = {
      model: page.state.model.id,
      texts_a: words("a"),
      texts_b: words("b"),
      point: `blocks.${$("steer-block").value}.resid`,
    };
    const { point, vector } = await once("api/direction", body);
    found = { point, vector: [...decodeArray(vector).data] };
  }

  async function update() {
    if (!(await ready()) || told === JSON.stringify(fields())) return;
    told = JSON.stringify(fields());
    onChange();
  }

  function say() {
    if (!strength()) {
      says.textContent =
        "At 0, the model writes as it was trained. Move the slider: the text is written anew, though the words themselves are not in the prompt.";
      return;
    }
    const length = Math.hypot(...found.vector);
    says.textContent = `The mean vector of “${words("a").join(", ")}” minus that of “${words("b").join(", ")}” has length ${formatNumber(length, 1)}. ${signed(strength())} times it is added to each token’s line after block ${$("steer-block").value}, while texts are written and in all that this page shows.`;
    says.dataset.length = length;
  }

  $("steer").addEventListener("input", () => {
    output.value = signed(strength());
  });
  for (const id of ["steer", "steer-a", "steer-b", "steer-block"])
    $(id).addEventListener("change", update);

  /** The field of a request that steers a pass: none at strength 0. */
  function fields() {
    return found && strength()
      ? { interventions: [{ point: found.point, vector: found.vector, strength: strength() }] }
      : {};
  }

  return {
    build,
    ready,
    fields,
    /** What a sentence about the settings says. */
    name: () => (fields().interventions ? [`steering ${signed(strength())}`] : []),
    read: () => [
      strength(),
      $("steer-a").value,
      $("steer-b").value,
      Number($("steer-block").value),
    ],
    async set([value, a, b, block]) {
      $("steer").value = Number(value) || 0;
      $("steer-a").value = String(a).slice(0, 400);
      $("steer-b").value = String(b).slice(0, 400);
      if ($("steer-block").options[block]) $("steer-block").value = block;
      await ready();
      told = JSON.stringify(fields());
    },
  };
}
