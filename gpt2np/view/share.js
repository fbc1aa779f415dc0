// Keep and share: the state in the page's address, and files.

import { ConnectionLost, ServerError } from "./api.js";
import { paintCard } from "./card.js";
import { Tree, packTree, pathTo, unpackTree } from "./tree.js";
import { plainTable, tableRow } from "./numbers.js";
import { $, chipElement, download, element, percent, visible } from "./view.js";

const encode = (value) => {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  return btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join("")).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "");
};
const decode = (text) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0))));

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
    v: 1, model: state.model?.id, prompt: $("prompt").value, settings: page.readSettings(),
    part: [inside.chosen.layer, inside.chosen.head], factors: [...inside.factors], steering: page.steering.read(),
    ...(state.tree && { ids: state.tree.ids, text: state.tree.text, tree: packTree(state.tree.root), path: pathTo(state.current).map((node) => node.id), pinned: state.pinned }),
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
    for (const [key, factor] of arrived.factors ?? []) inside.factors.set(String(key), Number(factor));
    if (Array.isArray(arrived.steering)) await page.steering.set(arrived.steering);
    await page.tokenizePrompt();
    if (arrived.ids) await restoreTree();
  }

  async function restoreTree() {
    const isId = (id) => Number.isInteger(id) && id >= 0 && id < state.model.vocab_size;
    if (arrived.model !== state.model.id || !arrived.ids.every(isId) || !arrived.path.every(isId)) {
      page.setStatus(`This link was made with the model ${visible(String(arrived.model)).slice(0, 60)}, which this server does not have.`, true);
      return;
    }
    const tree = Object.assign(new Tree(arrived.text, arrived.ids), { model: state.model.id });
    unpackTree(tree, tree.root, arrived.tree);
    Object.assign(state, { tree, current: arrived.path.reduce((node, id) => tree.add(node, { id }), tree.root) });
    await page.ensureNumbers();
    page.renderStory();
    page.setBusy(null);
    page.setStatus("Opened from the link.");
    if (arrived.pinned !== null) await page.pin(Math.min(arrived.pinned, page.allIds().length)).catch(page.showError);
  }

  // ---- files

  const tokenJson = (id) => ({ id, text: page.tokenText(id) });

  function asJson() {
    const nodes = state.tree ? pathTo(state.current) : [];
    return {
      ...snapshot(), generator: "gpt2np playground",
      tokens: nodes.map((node) => ({ ...tokenJson(node.id), logprob: node.logprob, top: (node.top ?? []).map(({ id, logprob }) => ({ ...tokenJson(id), logprob })) })),
      branches: state.tree ? state.tree.leaves().map((leaf) => page.textOf([...state.tree.ids, ...pathTo(leaf).map((node) => node.id)])) : [],
    };
  }

  /** A page without scripts that opens without the server. */
  async function asHtml() {
    const sheets = await Promise.all(["colors.css", "style.css"].map(async (name) => (await fetch(`playground/${name}`)).text()));
    const made = document.implementation.createHTMLDocument("A text by GPT-2 · gpt2np");
    made.documentElement.lang = "en";
    const nodes = state.tree ? pathTo(state.current) : [];
    const settings = Object.entries(page.readSettings()).map(([name, value]) => `${name} ${value}`).join(", ");
    made.head.append(
      element("meta", { charset: "utf-8" }), element("meta", { name: "viewport", content: "width=device-width, initial-scale=1" }), element("meta", { name: "color-scheme", content: "light dark" }),
      element("meta", { "http-equiv": "Content-Security-Policy", content: "default-src 'none'; style-src 'unsafe-inline'" }));
    made.body.className = "saved";
    made.body.append(element("main", {},
      element("h1", {}, "A text by GPT-2"),
      element("p", { class: "lead" }, `Written by the model ${state.model.id} in gpt2np’s playground: ${settings}. A stronger blue means that the model gave the token a greater probability.`),
      element("p", { class: "story", dir: "auto" }, element("bdi", { class: "given-text" }, visible(page.textOf(state.tree?.ids ?? []))),
        ...nodes.map((node) => element("span", { class: "piece", p: Math.exp(node.logprob ?? 0), title: percent(Math.exp(node.logprob ?? 0)) }, element("bdi", {}, visible(page.tokenText(node.id)))))),
      plainTable("Each token, its probability, and the likeliest tokens in its place", ["token", "probability", "likeliest"], nodes.map((node) => tableRow({}, chipElement(page.tokenText(node.id)),
        percent(Math.exp(node.logprob ?? 0)), (node.top ?? []).slice(0, 5).flatMap(({ id, logprob }) => [chipElement(page.tokenText(id)), ` ${percent(Math.exp(logprob))} `]))))));
    // As text: this page's policy forbids an inline style even in a document that is not shown.
    const [head, rest] = made.documentElement.outerHTML.split("</head>", 2);
    return `<!DOCTYPE html>\n${head}<style>${sheets.join("\n")}</style></head>${rest}`;
  }

  /** The text as a picture, each written token with its probability. */
  function asCard() {
    const ids = state.tree ? page.allIds() : [];
    const nodes = state.tree ? pathTo(state.current) : [];
    const n = ids.length - nodes.length;
    const pieces = page.textsOf(ids).map((text, i) => ({ text: text === "·" ? "" : text, p: i < n ? null : Math.exp(nodes[i - n].logprob ?? 0) }));
    const { temperature, top_k, top_p } = page.readSettings();
    const facts = `Written by the model ${state.model.id} in gpt2np’s playground; below each token its probability. Temperature ${temperature}, top-k ${top_k || "off"}, top-p ${top_p === 1 ? "off" : top_p}.`;
    return paintCard(state.tree ? pieces : [{ text: $("prompt").value, p: null }], facts, getComputedStyle($("story")).direction);
  }

  const says = (text) => { $("share-status").textContent = text; };
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
  const offer = (id, name, type, make, more = "") => $(id).addEventListener("click", async () => { download(name, type, await make()); says(`Saved as ${name}${more}.`); });
  offer("save-text", "gpt2.txt", "text/plain;charset=utf-8", text);
  offer("save-json", "gpt2.json", "application/json", () => JSON.stringify(asJson(), null, 1));
  offer("save-card", "gpt2.png", "image/png", () => new Promise((resolve) => asCard().toBlob(resolve)));
  offer("save-html", "gpt2.html", "text/html;charset=utf-8", asHtml, ", which opens without a server");

  return { save, restore, modelName: () => (state.models.includes(arrived?.model) ? arrived.model : null) };
}
