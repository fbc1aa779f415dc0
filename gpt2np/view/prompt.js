import { forgetAnswers, loadModel } from "./api.js";
import { renderBranches } from "./branches.js";
import { save } from "./share.js";
import { chip, encode, isTreeOfPrompt, state } from "./state.js";
import {
  goTo,
  hidePass,
  renderStory,
  setBusy,
  setStatus,
  showError,
  showPass,
  stop,
} from "./story.js";
import { Tree } from "./tree.js";
import { $, element } from "./view.js";

let typed = 0; // requests

export async function showPrompt() {
  const number = ++typed;
  try {
    const ids = await encode($("prompt").value);
    if (number !== typed || state.running || (state.tree && isTreeOfPrompt())) return;
    if (!$("prompt").value) setStatus("Nothing is typed: it starts from <|endoftext|>.");
    const says = ["What comes after ", chip(ids.at(-1)), "? Guess, then press Write."];
    await showPass(ids, null, { isOpen: true, says });
  } catch (error) {
    if (number !== typed) return;
    hidePass();
    showError(error);
  }
}

/** Show what `model`, which has learned on, predicts after the prompt beside what `base` does. */
export async function showLearned(model, base, signal) {
  forgetAnswers();
  if (state.running) return;
  try {
    const ids = await encode($("prompt").value);
    const ends = ["What it expects next: before the lesson, and now."];
    if (!signal.aborted) await showPass(ids, null, { model, base, signal, ends });
  } catch (error) {
    if (!signal.aborted) showError(error);
  }
}

/** Start a new tree from the prompt, unless the tree is that prompt's. */
export async function usePrompt() {
  const text = $("prompt").value;
  if (state.tree && isTreeOfPrompt()) return true;
  const ids = await encode(text);
  if ($("prompt").value !== text) return false;
  const tree = new Tree(text, ids, state.model.id);
  Object.assign(state, { tree, current: tree.root, pinned: null, lastRun: null, intact: null });
  return true;
}

function editPrompt() {
  for (const id of ["story", "intact", "intact-name", "story-name", "retry", "edit"])
    $(id).hidden = true;
  $("generate").textContent = "Write ▷";
  setStatus("");
  $("prompt").hidden = false;
  $("prompt").focus();
  $("prompt").select();
}

/** A new beginning: all parts work again, and nothing is written. */
async function setPrompt(text) {
  await stop();
  $("prompt").value = text;
  Object.assign(state, { tree: null, current: null, intact: null, pinned: null, lastRun: null });
  state.off = new Set();
  setBusy(null);
  renderStory();
  renderBranches();
  save();
  setStatus("");
  await showPrompt();
}

async function useModel(name) {
  state.model = await loadModel(name);
  $("model").value = name;
}

export async function useWeights(id) {
  state.model = { ...state.model, id };
  await setPrompt($("prompt").value);
}

/** Open the page with these models, the first or `wanted` chosen. */
export async function showModels(names, wanted) {
  $("model").replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  $("model-label").hidden = names.length < 2;
  await useModel(wanted ?? names[0]);
}

/** `onModel()` is called when another model has been chosen. */
export function startPrompt(onModel) {
  $("prompt").addEventListener("input", () => {
    if (state.tree && isTreeOfPrompt()) {
      setBusy(null);
      goTo(state.current);
    } else {
      if (state.intact) state.current = state.intact;
      Object.assign(state, { intact: null, off: new Set() });
      setBusy(null);
      renderStory();
      renderBranches();
      setStatus("");
      showPrompt();
    }
  });
  $("prompt").addEventListener("keydown", (event) => {
    const isSubmit = event.key === "Enter" && !event.shiftKey;
    if (!isSubmit) return;
    event.preventDefault();
    $("write-form").requestSubmit();
  });
  $("edit").addEventListener("click", editPrompt);
  $("examples").addEventListener("change", () => {
    const { selectedIndex, selectedOptions } = $("examples");
    const prompt = selectedOptions[0].label;
    $("examples").selectedIndex = 0;
    if (selectedIndex) setPrompt(prompt);
  });
  $("model").addEventListener("change", async () => {
    await stop();
    await useModel($("model").value);
    onModel(); // requests from here on name the new model
    await setPrompt($("prompt").value);
  });
}
