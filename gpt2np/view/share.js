// Keep and share: the state in the page's address, and the text as a file.

import { ConnectionLost, ServerError } from "./api.js";
import { Tree, packTree, pathTo, unpackTree } from "./tree.js";
import { $, download, visible } from "./view.js";

const encode = (value) => {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  return btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""))
    .replace(/\+/g, "-")
    .replace(/\//g, "_")
    .replace(/=/g, "");
};
const decode = (text) =>
  JSON.parse(
    new TextDecoder().decode(
      Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0)),
    ),
  );

export function createShare(page, inside) {
  const { state } = page;
  let timer = null;
  const arrived = readAddress();

  function readAddress() {
    try {
      const found = /^#s=([\w-]+)$/.exec(location.hash);
      return found ? decode(found[1]) : null;
    } catch {
      return null;
    }
  }

  const snapshot = () => ({
    v: 1,
    model: state.model?.id,
    prompt: $("prompt").value,
    settings: page.readSettings(),
    part: [inside.chosen.layer, inside.chosen.head],
    factors: [...inside.factors],
    steering: page.steering.read(),
    ...(state.tree && {
      ids: state.tree.ids,
      text: state.tree.text,
      tree: packTree(state.tree.root),
      path: pathTo(state.current).map((node) => node.id),
      pinned: state.pinned,
    }),
  });

  function saveNow() {
    clearTimeout(timer);
    window.history.replaceState(null, "", `#s=${encode(snapshot())}`);
  }

  function save() {
    clearTimeout(timer);
    timer = setTimeout(saveNow, 300);
  }

  /** Show the state of the address that the page was opened with; tell whether there was one. */
  async function restore() {
    if (!arrived || typeof arrived.prompt !== "string") return false;
    try {
      await show();
    } catch (error) {
      if (error instanceof ServerError || error instanceof ConnectionLost) throw error;
      Object.assign(state, { tree: null, current: null });
      page.setStatus("The link is damaged; only a part of it could be opened.", true);
    }
    return true;
  }

  async function show() {
    $("prompt").value = arrived.prompt;
    for (const [name, value] of Object.entries(arrived.settings ?? {})) {
      if (!$(name)?.matches("#settings input")) continue;
      $(name).value = Number(value);
      page.correctSetting($(name));
    }
    const [layer, head] = arrived.part ?? [null, 0];
    Object.assign(inside.chosen, { layer, head });
    for (const [key, factor] of arrived.factors ?? [])
      inside.factors.set(String(key), Number(factor));
    if (Array.isArray(arrived.steering)) await page.steering.set(arrived.steering);
    await page.tokenizePrompt();
    if (arrived.ids) await restoreTree();
  }

  async function restoreTree() {
    const isId = (id) => Number.isInteger(id) && id >= 0 && id < state.model.vocab_size;
    if (arrived.model !== state.model.id || !arrived.ids.every(isId) || !arrived.path.every(isId)) {
      page.setStatus(
        `This link was made with the model ${visible(String(arrived.model)).slice(0, 60)}, which this server does not have.`,
        true,
      );
      return;
    }
    const tree = Object.assign(new Tree(arrived.text, arrived.ids), { model: state.model.id });
    unpackTree(tree, tree.root, arrived.tree);
    Object.assign(state, {
      tree,
      current: arrived.path.reduce((node, id) => tree.add(node, { id }), tree.root),
    });
    await page.ensureNumbers();
    page.renderStory();
    page.setBusy(null);
    page.setStatus("Opened from the link.");
    if (arrived.pinned !== null)
      await page.pin(Math.min(arrived.pinned, page.allIds().length)).catch(page.showError);
  }

  const says = (text) => {
    $("share-status").textContent = text;
  };
  const text = () => (state.tree ? page.textOf(page.allIds()) : $("prompt").value);
  $("copy-link").addEventListener("click", async () => {
    saveNow();
    try {
      await navigator.clipboard.writeText(location.href);
      says("Copied.");
    } catch {
      says("The browser does not allow copying here. Copy the address of this page instead.");
    }
  });
  $("save-text").addEventListener("click", () => {
    download("gpt2.txt", "text/plain;charset=utf-8", text());
    says("Saved as gpt2.txt.");
  });

  return {
    save,
    restore,
    modelName: () => (state.models.includes(arrived?.model) ? arrived.model : null),
  };
}
