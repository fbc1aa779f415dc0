import { ConnectionLost, ServerError } from "./api.js";
import { loadNumbers, renderBranches } from "./branches.js";
import { allIds, correctSetting, readSettings, state } from "./state.js";
import { pin, renderStory, setBusy, setStatus, showError } from "./story.js";
import { Tree, packPath, unpackPath } from "./tree.js";
import { $ } from "./view.js";

function readAddress() {
  try {
    return JSON.parse(decodeURIComponent(location.hash.slice("#s=".length)));
  } catch {
    return null;
  }
}

const arrived = readAddress();
let timer = null;

/** The model of the address, or that which was taught, if the server has it. */
export const wantedModel = () =>
  state.models.find((name) => name === String(arrived?.model).split(" taught ")[0]);

const snapshot = () => ({
  ...{ v: 1, model: state.model?.id, prompt: $("prompt").value, settings: readSettings() },
  off: [...state.off],
  ...(state.tree && {
    ...{ ids: state.tree.ids, text: state.tree.text },
    ...{ path: packPath(state.current), pinned: state.pinned },
    intact: state.intact && packPath(state.intact),
  }),
});

function saveNow() {
  clearTimeout(timer);
  window.history.replaceState(null, "", `#s=${encodeURIComponent(JSON.stringify(snapshot()))}`);
}

/** Save the state soon; a text of many tokens is saved once. */
export function save() {
  clearTimeout(timer);
  timer = setTimeout(saveNow, 300);
}

/** Show the state of the address that the page was opened with; tell whether it has a text. */
export async function restore() {
  if (typeof arrived?.prompt !== "string") return false;
  try {
    $("prompt").value = arrived.prompt;
    for (const [name, value] of Object.entries(arrived.settings ?? {})) {
      if (!$(name)?.matches("#settings input")) continue;
      $(name).value = Number(value);
      correctSetting($(name));
    }
    return Boolean(arrived.ids) && (await restoreText());
  } catch (error) {
    if (error instanceof ServerError || error instanceof ConnectionLost) throw error;
    Object.assign(state, { tree: null, current: null, intact: null });
    setStatus("The link is damaged; only a part of it could be opened.", true);
    return false;
  }
}

async function restoreText() {
  const { ids, path, model, text, off = [], intact, pinned } = arrived;
  const isId = (id) => Number.isInteger(id) && id >= 0 && id < state.model.vocab_size;
  if (
    model !== state.model.id ||
    !ids.every(isId) ||
    !path.every((each) => isId([each].flat()[0]))
  ) {
    setStatus("The model of this text has forgotten its page, or is on another server.");
    return false;
  }
  const tree = new Tree(text, ids, model);
  state.off = new Set(off.map(String));
  Object.assign(state, { tree, current: unpackPath(tree, path) });
  state.intact = intact ? unpackPath(tree, intact) : null;
  await loadNumbers();
  setBusy(null);
  renderStory();
  renderBranches();
  setStatus("Opened from the link.");
  await pin(Math.min(pinned ?? ids.length, allIds().length)).catch(showError);
  return true;
}

export function startShare() {
  addEventListener("hashchange", save); // links within the page replace the text's address
  $("copy-link").addEventListener("click", async () => {
    saveNow();
    try {
      await navigator.clipboard.writeText(location.href);
      setStatus("The link is copied.");
    } catch {
      setStatus("The browser forbids it. Copy the address of this page.");
    }
  });
}
