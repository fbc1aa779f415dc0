import { getJson, setKey } from "./api.js";
import { startBranches } from "./branches.js";
import { renderParts, startParts } from "./parts.js";
import { machine } from "./picture.js";
import { showLearned, showModels, showPrompt, startPrompt, useWeights } from "./prompt.js";
import { restore, save, startShare, wantedModel } from "./share.js";
import {
  SETTINGS,
  allIds,
  correctSetting,
  readSettings,
  sampling,
  showSettings,
  state,
} from "./state.js";
import { pin, setStatus, showError, startStory, stop } from "./story.js";
import { createTeach } from "./teach.js";
import { $ } from "./view.js";

addEventListener("unhandledrejection", (event) => {
  showError(event.reason);
  event.preventDefault();
});
startStory();
startBranches();
startParts();
startShare();
$("tables").append(machine.tables);

let settled = null; // the settings have changed: a timer

function showAgain() {
  if (state.pinned !== null) pin(Math.min(state.pinned, allIds().length));
  else if (!state.running) showPrompt();
}

for (const name of SETTINGS) {
  $(name).addEventListener("change", () => correctSetting($(name)));
  $(name).addEventListener("input", () => {
    showSettings();
    save();
    clearTimeout(settled);
    if (name in sampling()) settled = setTimeout(showAgain, 150);
  });
}

for (const name of ["off", "teach", "more"]) {
  const opener = $(`${name}-button`);
  opener.addEventListener("click", () => {
    const isOpen = $(name).hidden;
    $(name).hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    if (state.model) renderParts();
    const other = { off: "teach", teach: "off" }[name]; // beside the picture is room for one
    if (other && !$(other).hidden && $(other).dataset.phase !== "learning")
      $(`${other}-button`).click();
    $(name).scrollIntoView({ block: other ? "nearest" : "start" });
    $(name).querySelector('textarea, .cell[tabindex="0"]')?.focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => {
    const isInside = $(name).contains(document.activeElement) || document.activeElement === opener;
    if (event.key !== "Escape" || $(name).hidden || !isInside) return;
    event.preventDefault(); // a zoom stays open
    if ($(name).dataset.phase === "learning") return; // the lesson stays in sight
    opener.click();
    opener.focus();
  });
}
document.addEventListener("keydown", (event) => {
  const isFree = !event.defaultPrevented && !document.querySelector(".machine-picture.inside");
  if (event.key === "Escape" && isFree) stop();
});

const forget = createTeach($("teach"), {
  model: () => state.model.id,
  request: () => ({ ...readSettings(), prompt: $("prompt").value }),
  onModel: useWeights,
  onReady: showLearned,
  onEnd: showAgain,
  onWatch() {
    scrollTo(0, 0);
    $("generate").focus();
    $("generate").click();
  },
});
startPrompt(forget);

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value);
  $("key-form").hidden = true;
  setStatus("");
  start();
});

async function start() {
  try {
    const { data } = await getJson("v1/models");
    const names = data.map((model) => model.id);
    state.models = names;
    await showModels(names, wantedModel());
    if (!(await restore())) await showPrompt();
    showSettings();
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    showError(error);
  }
}

showSettings();
start();
