// The playground: prompt, story, choices. gpt2np/view/__init__.py lists the other modules.

import {
  ConnectionLost,
  ServerError,
  getJson,
  isKept,
  loadModel,
  onConnection,
  once,
  postJson,
  post,
  readTokens,
  serverSource,
  setKey,
  streamCompletion,
} from "./api.js";
import { EXAMPLES, MODEL } from "./examples.js";
import { createInside } from "./inside.js";
import { createMachine } from "./machine.js";
import { plainTable, tableRow } from "./numbers.js";
import { createRiver } from "./river.js";
import { createSaliency } from "./saliency.js";
import { createShare } from "./share.js";
import { createSteering } from "./steering.js";
import { Tree, pathTo } from "./tree.js";
import {
  $,
  bar,
  button,
  chipElement,
  counted,
  dataElement,
  decodeToken,
  decodeTokens,
  element,
  find,
  hex,
  hint,
  inText,
  percent,
  rovingFocus,
  shareElement,
  showList,
  visible,
  withSpaces,
} from "./view.js";

const SETTINGS = ["temperature", "top_k", "top_p", "max_tokens", "seed"];
const N_END = 8; // tokens of the end of a text

/** What the page shows. `pinned` is the index of a token of prompt and path, or their number. */
const state = { models: [], model: null, tree: null, current: null, pinned: null, lastRun: null };
let running = null; // the AbortController of the text that is being written

// ---- settings

/** The number of an input: whole if the input counts, and the nearest in range. */
function inRange({ min, max, step, value }) {
  const number = step === "1" ? Math.round(Number(value)) : Number(value);
  return Math.min(Number(max), Math.max(Number(min), number || 0));
}

const readSettings = () => Object.fromEntries(SETTINGS.map((name) => [name, inRange($(name))]));

/**
 * A number that an input can't have becomes the nearest that it can; return what to say about it.
 */
function correctSetting(input) {
  const value = inRange(input);
  if (input.value !== "" && Number(input.value) === value) return "";
  input.value = value;
  return `${input.labels[0].firstChild.textContent.trim()} is ${input.step === "1" ? "a whole number " : ""}from ${Number(input.min)} to ${Number(input.max).toLocaleString("en")}; it is ${value} now.`;
}

function showSettings() {
  $("temperature-value").value = Number($("temperature").value).toFixed(2);
  $("top_k-value").value = $("top_k").value === "0" ? "off" : $("top_k").value;
  $("top_p-value").value = $("top_p").value === "1" ? "off" : Number($("top_p").value).toFixed(2);
}

/**
 * Return the fields of a request that say how tokens are picked.
 * @param {any} settings
 */
const sampling = ({ temperature, top_k, top_p }) => ({ temperature, top_k, top_p });
/** What is kept with each token that is written. */
const settingsNow = () => ({ ...sampling(readSettings()), steering: steering.read() });

// ---- tokens

/** A token's text, after the tokens `before`, which may have begun a character. */
const tokenText = (id, before = []) =>
  decodeToken(
    state.model.bytes(id),
    before.slice(-4).flatMap((each) => [...state.model.bytes(each)]),
  );
/** Texts of tokens in their text: a character of several tokens stands at the last one. */
const textsOf = (ids) => {
  const bytes = ids.map((id) => (id === null ? new Uint8Array() : state.model.bytes(id)));
  return decodeTokens(bytes).map((text, i) => inText(text, bytes[i]));
};
const allIds = () => [...state.tree.ids, ...pathTo(state.current).map((node) => node.id)];
const isEnd = (id) => state.model.eos_token_ids.includes(id);

/**
 * An element that shows a token, with visible spaces, as the next one after the tokens `before`.
 */
const chip = (id, before = []) => chipElement(tokenText(id, before), id);

// ---- the prompt: tokens while you type

let typed = 0; // the number of the latest request

async function encode(modelName, text) {
  const { tokens } = await postJson("tokenize", { model: modelName, prompt: text });
  return tokens.length ? tokens : (await loadModel(modelName)).empty_prompt_ids;
}

async function tokenizePrompt() {
  if (!state.model) return null;
  const number = ++typed;
  const text = $("prompt").value;
  try {
    const ids = await encode(state.model.id, text);
    if (number !== typed) return null;
    showPromptTokens(ids);
    showPrompt(ids);
    return ids;
  } catch (error) {
    showError(error);
    return null;
  }
}

function showPromptTokens(ids) {
  const limit = state.model.n_positions;
  const count = $("prompt-count"),
    texts = textsOf(ids);
  count.textContent =
    `${counted(ids.length, "token")} of at most ${limit.toLocaleString("en")}` +
    (ids.length > limit
      ? ": too many for this model’s context. Shorten the text."
      : ". These are the pieces that the model reads (␣ is a space):");
  if (texts.at(-1)?.endsWith(" "))
    count.textContent +=
      " The text ends in a space: GPT-2’s words begin with their space, so leave this space out.";
  count.classList.toggle("wrong", ids.length > limit);
  showList(
    $("prompt-tokens"),
    ids.map((id, i) => ({ id, text: texts[i] })),
    ({ id, text }) => `${id} ${text}`,
    ({ id, text }, i) =>
      button(withSpaces(text), null, { class: `token t${i % 5}`, tabindex: -1, "data-id": id }),
  );
  promptFocus.reset();
}

const promptFocus = rovingFocus($("prompt-tokens"), "button");
function readToken(event) {
  const button = event.target.closest("button");
  if (!button) return;
  const id = Number(button.dataset.id);
  const bytes = state.model.bytes(id);
  $("token-readout").replaceChildren(
    chip(id),
    ` is token number ${id} of ${state.model.vocab_size.toLocaleString("en")}. Its ${bytes.length === 1 ? "byte" : counted(bytes.length, "byte")}: ${hex(bytes)}.`,
  );
}
for (const kind of ["pointerover", "focusin", "click"])
  $("prompt-tokens").addEventListener(kind, readToken);
$("prompt").addEventListener("input", () => {
  tokenizePrompt();
  setBusy(running);
  if (running || !state.tree) return;
  if (isTreeOfPrompt()) {
    renderStory();
    setStatus("");
    pin(state.pinned ?? allIds().length);
  } else {
    hideStory("The prompt has changed. Write something first.");
    setStatus("The prompt has changed. Write begins a new text.");
  }
});

/**
 * What is on the page describes one text: a story that is not the prompt's goes, and what the
 * panels said of it.
 */
function hideStory(why) {
  for (const id of ["story", "story-legend", "branches"]) $(id).hidden = true;
  shown += 1; // an answer on its way comes too late
  $("choices-content").replaceChildren(hint(why));
  inside.clear(why);
  glow(null);
}

// ---- the story

function storyToken(node, index) {
  const id = node.id;
  if (id === null)
    return element(
      "span",
      {
        role: "button",
        class: "piece next",
        tabindex: -1,
        "data-index": index,
        "aria-label": "the next token",
      },
      "?",
    );
  const { text } = node;
  const p = node.logprob === undefined ? null : Math.exp(node.logprob);
  const label = `token ${index}: ${withSpaces(text)}${p === null ? "" : `, probability ${percent(p)}`}`;
  return element(
    "span",
    {
      // a button would not break across lines
      role: "button",
      class: `piece${isEnd(id) ? " end" : ""}${node.isGiven ? " given" : ""}`,
      tabindex: -1,
      "data-index": index,
      "data-id": id,
      "data-p": p,
      "aria-label": label,
      title: label,
      p: p ?? 0,
    },
    isEnd(id) ? "⟨end of text⟩" : text === "·" && !node.isLast ? "" : visible(text),
    ...(text.endsWith("\n") ? [element("br")] : []),
  );
}

function showStory() {
  const nodes = [
    ...state.tree.ids.map((id) => ({ id, isGiven: true })),
    ...pathTo(state.current),
    { id: null },
  ];
  const texts = textsOf(nodes.map(({ id }) => id));
  showList(
    $("story"),
    nodes.map((node, i) => ({ ...node, text: texts[i], isLast: i === nodes.length - 2 })),
    ({ id, logprob, isGiven, text, isLast }) =>
      `${id} ${logprob} ${isGiven} ${text} ${text === "·" && isLast}`,
    storyToken,
  );
}

function renderStory() {
  showStory();
  $("story").hidden = $("story-legend").hidden = !isTreeOfPrompt();
  markPinned();
  $("branches").hidden = !isTreeOfPrompt();
  river.render();
  share.save();
}

const storyFocus = rovingFocus($("story"), ".piece");
const indexOf = (event) => {
  const button = event.target.closest(".piece");
  return button ? Number(button.dataset.index) : null;
};
for (const kind of ["pointerover", "focusin"])
  $("story").addEventListener(kind, (event) => preview(indexOf(event)));
$("story").addEventListener("pointerleave", () => {
  preview(state.pinned);
  glow(null);
});
$("story").addEventListener("focusout", ({ relatedTarget }) => {
  if (!relatedTarget?.closest("#story, #choices")) preview(state.pinned);
  glow(null);
});
$("story").addEventListener("click", (event) => pin(indexOf(event)));
$("story").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  pin(indexOf(event));
});

function markPinned() {
  for (const button of $("story").children) {
    const is = Number(button.dataset.index) === state.pinned;
    button.setAttribute("aria-pressed", String(is));
    if (is) {
      storyFocus.select(button);
      $("story").scrollTop = button.offsetTop - 40; // in sight, without moving the page
    }
  }
  storyFocus.reset();
}

function preview(index) {
  if (running || !isTreeOfPrompt()) return;
  glow(index);
  if (index !== null) showChoices(index);
}

async function pin(index, plays = /** @type {boolean | string} */ (false)) {
  if (index === null || running || !isTreeOfPrompt()) return;
  state.pinned = index;
  markPinned();
  share.save();
  const ids = allIds();
  const [context, token] = [ids.slice(0, index), ids[index] ?? null];
  const answer = context.length ? askNext(context, token) : null; // for both sections
  asking = null;
  showChoices(index);
  // otherwise inside.show draws it, with the changed parts
  if (!inside.factors.size) showMachine(answer, token, plays);
  await inside.show(context, token, answer, plays);
}

/**
 * Show the text that ends with a node, and what is inside at the token `index` (default: the next
 * one).
 * @param node
 * @param {{index?: number, says?: string, plays?: boolean | string}} [options]
 */
async function goTo(node, { index, says, plays } = {}) {
  Object.assign(state, { current: node, pinned: null });
  setBusy(null);
  renderStory();
  if (says) setStatus(says);
  const { how } = pathTo(node).findLast((each) => each.how) ?? {};
  // so that the panels show the pass that the text came from
  if (how) await steering.set(how.steering);
  await pin(index ?? allIds().length, plays);
}

// ---- the Machine

const source = serverSource({ model: () => state.model.id, changes: () => page.changes() });
const machine = createMachine($("machine"), {
  onEnd: goOn,
  onPick: pickNext,
  onSwitch: switchPart,
  source,
});
$("numbers").append(machine.panels);
let asked = 0; // the number of the latest pass to show

/**
 * Switch a part off, or on again, in the pass that is shown: also in that of a prompt with which
 * nothing was done yet.
 */
async function switchPart(key) {
  if (running) return;
  if (state.pinned === null || !isTreeOfPrompt()) {
    if (!(await usePrompt())) return;
    await goTo(state.current);
  }
  await inside.toggle(key);
}

/** Continue with a token of the answer that the Machine shows. */
async function pickNext(id) {
  const { ids, next } = machine.pass;
  if (running || (!isTreeOfPrompt() && !(await usePrompt()))) return;
  await choose(ids.length, { id, logprob: next.find((row) => row.id === id)?.logprob });
}

async function showMachine(
  answer,
  token,
  plays = /** @type {boolean | string} */ (false),
  changes = {},
) {
  const number = ++asked;
  const described = await answer;
  if (number !== asked || !described) return;
  const { temperature, top_k, top_p } = readSettings();
  const filters = [
    `temperature ${temperature}`,
    ...(top_k ? [`top-k\u00a0${top_k}`] : []),
    ...(top_p < 1 ? [`top-p ${top_p}`] : []),
  ];
  const title = [
    ...steering.name().map((name) => `${name[0].toUpperCase()}${name.slice(1)}.`),
    `With ${filters.join(", ")}: before → after`,
  ].join(" ");
  // tokens of the prompt stay
  const picks = !isTreeOfPrompt() || described.ids.length >= state.tree.ids.length;
  machine.show(described, { token, title, plays, picks, ...changes });
}

/**
 * The Machine has played a pass: play that of the next token, which is written if it is not there
 * yet.
 */
async function goOn() {
  if (running) return;
  const next = state.pinned + 1;
  if (!isTreeOfPrompt()) await write(null, 1, { usesPrompt: true, plays: "on" });
  else if (next < allIds().length) await pin(next, "on");
  else if (!isEnd(allIds().at(-1))) await write(state.current, 1, { plays: "on" });
  else machine.pause();
}

/** Show the pass over the prompt as typed, before anything is written. */
async function showPrompt(ids) {
  if (state.tree?.text === $("prompt").value || running) return;
  if (ids.length <= state.model.n_positions) await showMachine(askNext(ids, null), null);
  else {
    asked += 1;
    $("machine").hidden = true; // the model can't read this text
  }
}

// ---- choices

/**
 * The draw of the token after `context`, if the story knows it: a request's seed, and the tokens
 * drawn before.
 */
function drawOf({ length }, token) {
  const node =
    state.tree && token !== null && pathTo(state.current)[length - state.tree.ids.length];
  return node?.draw ? { seed: node.draw[0], n_drawn: node.draw[1] } : {};
}

/**
 * The request for what is inside the pass over `context`, and for what follows it.
 * @param {any} [more]
 */
const requestNext = (context, token, more = drawOf(context, token)) => ({
  model: state.model.id,
  prompt: context,
  tokens: token === null ? null : [token],
  ...sampling(readSettings()),
  ...steering.fields(),
  ...more,
});

/** Ask the server what follows `context`. The answer is cached: a click often follows hovering. */
const askNext = (context, token, signal) =>
  once("api/inspect", requestNext(context, token), signal);

let shown = 0; // the number of the latest choices
// their index and the AbortController of their request; null: nobody may end it, as the token is
// pinned
let asking = null;

async function showChoices(index) {
  const number = ++shown;
  if (index !== asking?.index) {
    asking?.controller.abort();
    asking = { index, controller: new AbortController() };
  }
  const ids = allIds();
  const context = ids.slice(0, index);
  const chosen = ids[index] ?? null;
  if (!context.length)
    return $("choices-content").replaceChildren(
      hint("This is the first token: the model has nothing to predict it from."),
    );
  $("choices-content").setAttribute("aria-busy", "true");
  const settings = readSettings();
  if (!isKept("api/inspect", requestNext(context, chosen))) {
    const node = pathTo(state.current)[index - state.tree.ids.length];
    if (node?.top) renderChoices(index, chosen, node.top, null);
    await new Promise((resolve) => setTimeout(resolve, 80)); // the pointer may only pass by
    if (number !== shown || running) return;
  }
  try {
    const answer = await askNext(context, chosen, asking.controller.signal);
    if (number === shown)
      renderChoices(
        index,
        chosen,
        answer.next,
        answer.kept,
        settings,
        answer.lens.at(-1).ranks[answer.tokens.indexOf(chosen)],
      );
  } finally {
    if (number === shown) $("choices-content").removeAttribute("aria-busy");
  }
}

function whyLost(rank, settings) {
  if (settings.temperature === 0) return "temperature 0";
  return settings.top_k > 0 && rank > settings.top_k ? "top-k" : "top-p";
}

/**
 * `next` has the likeliest tokens; `kept`, `sampled` and the chosen token's `rank` are missing
 * until the server answers.
 */
function renderChoices(index, chosen, next, kept, settings, rank) {
  const focused = find("#choices .pick:focus-within")?.dataset.id;
  const ranked = [...next].sort((a, b) => b.logprob - a.logprob);
  const listed = ranked.slice(0, 10);
  const own = ranked.find((row) => row.id === chosen);
  if (rank === undefined && listed.includes(own)) rank = listed.indexOf(own) + 1;
  if (own && !listed.includes(own)) listed.push(own);
  const isGiven = index < state.tree.ids.length;
  const says = element("p", { class: "says" });
  const read = allIds().slice(0, index);
  const before = endOf(read);
  if (chosen === null) says.append("After ", before, " the next token could be:");
  else {
    const place =
      ["likeliest", "second likeliest", "third likeliest"][rank - 1] ??
      (rank
        ? `number ${rank.toLocaleString("en")} of ${state.model.vocab_size.toLocaleString("en")}`
        : "…");
    says.append(
      "After ",
      before,
      isGiven ? " you wrote " : " came ",
      chip(chosen, read),
      ...(own ? [`, to which the model gave ${percent(Math.exp(own.logprob))}: ${place}.`] : ["."]),
    );
  }
  const most = Math.exp(ranked[0].logprob);
  const rest = 1 - listed.reduce((sum, row) => sum + Math.exp(row.logprob), 0);
  const mostSampled = kept && Math.max(...listed.map((row) => row.sampled));
  const restSampled = kept && 1 - listed.reduce((sum, row) => sum + row.sampled, 0);
  const share = (p, longest) => [shareElement(p), bar(longest ? p / longest : 0)];
  const lost = (row) =>
    element(
      "span",
      { class: "lost" },
      `cut off by ${whyLost(row === own ? rank : ranked.indexOf(row) + 1, settings)}`,
    );
  const rows = listed.map((row) => {
    const text = withSpaces(tokenText(row.id, read));
    const name = isGiven
      ? chip(row.id, read)
      : button(text, () => choose(index, row), {
          class: "token pick",
          "data-id": row.id,
          "aria-label": row === own ? `${text}, in the text` : `Continue with ${text}`,
        });
    const isCut = kept && row.sampled === 0;
    return tableRow(
      { class: `${row === own ? "own" : ""}${isCut ? " cut" : ""}` },
      name,
      share(Math.exp(row.logprob), most),
      kept === null ? "…" : isCut ? lost(row) : share(row.sampled, mostSampled),
    );
  });
  rows.push(
    tableRow(
      { class: "rest" },
      `all ${(state.model.vocab_size - listed.length).toLocaleString("en")} others`,
      dataElement(rest, percent(Math.max(0, rest))),
      kept === null
        ? "…"
        : dataElement(restSampled, restSampled < 1e-12 ? "0 %" : percent(restSampled)),
    ),
  );
  const table = plainTable(
    isGiven ? "This token is part of your prompt." : "Press a token to continue with it.",
    ["token", "the model’s probability", "after temperature, top-k, top-p"],
    rows,
    "choices",
  );
  const note = element("p", { class: "hint", id: "kept" });
  if (kept) {
    note.textContent =
      settings.temperature === 0
        ? "At temperature 0 the likeliest token is always taken."
        : `The model knows ${state.model.vocab_size.toLocaleString("en")} tokens; the settings leave ${kept.count.toLocaleString("en")} in the draw. Together these had ${percent(kept.probability)} before.`;
    Object.assign(note.dataset, { count: kept.count, probability: kept.probability });
  }
  $("choices-content").replaceChildren(says, table, note);
  if (focused) find(`.pick[data-id="${focused}"]`, $("choices-content"))?.focus();
}

function textOf(ids) {
  const bytes = ids.filter((id) => !isEnd(id)).flatMap((id) => [...state.model.bytes(id)]);
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

/** The end of a text, as an element. */
function endOf(ids) {
  const text = textsOf(ids)
    .map((each, i) => (each === "·" || isEnd(ids[i]) ? "" : each))
    .slice(-N_END)
    .join("");
  return element("bdi", { class: "context" }, (ids.length > N_END ? "…" : "") + visible(text));
}

/** Replace the token at an index by another one, as a new branch, and go on writing. */
async function choose(index, { id, logprob }) {
  if (running) return;
  const promptLength = state.tree.ids.length;
  const path = pathTo(state.current);
  const parent = path[index - promptLength - 1] ?? state.tree.root;
  const like = parent.children.find((child) => child.top);
  const node = state.tree.add(parent, { id, logprob, top: like?.top, how: settingsNow() });
  state.current = node;
  state.pinned = index;
  renderStory();
  if (isEnd(id)) setStatus("The text ends here: you picked the end-of-text token.");
  else await write(node, readSettings().max_tokens);
}

// ---- writing

/** Wait until the page is drawn: what the server does next would slow drawing down. */
const drawn = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

const isTreeOfPrompt = () => state.tree?.text === $("prompt").value;

function setBusy(controller) {
  running = controller;
  const hasText = isTreeOfPrompt();
  for (const id of ["generate", "step", "continue", "retry"])
    $(id).disabled = Boolean(controller) || (!hasText && (id === "continue" || id === "retry"));
  $("retry").disabled ||= !state.lastRun;
  $("stop").disabled = !controller;
}

function setStatus(text, isWrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", isWrong);
}

function showError(error) {
  // the page says so above
  if (error.name === "AbortError" || error instanceof ConnectionLost) return;
  if (!(error instanceof ServerError)) throw error;
  if (error.status === 401) $("key-form").hidden = false;
  setStatus(error.message, true);
}
addEventListener("unhandledrejection", (event) => {
  // whatever was pressed
  showError(event.reason);
  event.preventDefault();
});

/** Start a new tree from the prompt, unless the tree is that prompt's. */
async function usePrompt() {
  const text = $("prompt").value;
  if (state.tree?.text === text && state.tree.model === state.model.id) return true;
  const ids = await tokenizePrompt();
  if (!ids) return false;
  const tree = Object.assign(new Tree(text, ids), { model: state.model.id });
  Object.assign(state, { tree, current: tree.root, pinned: null, lastRun: null });
  return true;
}

/**
 * The node before the chosen token; the root if the token belongs to the prompt, or if none is
 * chosen.
 */
const pinnedNode = () =>
  pathTo(state.current)[(state.pinned ?? 0) - state.tree.ids.length - 1] ?? state.tree.root;

/**
 * Put the tokens of a stream into the tree as they come. `ends` has the last node of each text,
 * `how` the settings; return why the texts ended.
 */
async function grow(chunks, ends, seed, how, onToken) {
  const lengths = ends.map(() => 0);
  let reason = null;
  for await (const {
    choices: [choice],
  } of chunks) {
    const i = choice.index;
    for (const token of readTokens(choice)) {
      ends[i] = state.tree.add(ends[i], { ...token, draw: [seed + i, lengths[i]], how });
      lengths[i] += 1;
      [state.current] = ends;
      onToken();
    }
    reason = choice.finish_reason ?? reason;
  }
  return reason;
}

/**
 * Return the status after `n` tokens were written with seed `used`: the page's seed, or the page's
 * seed plus the `depth` tokens before them.
 */
function sayWritten(n, used, depth, reason, count) {
  const { seed } = readSettings();
  const why =
    reason === "stop"
      ? " The model ended the text."
      : allIds().length >= state.model.n_positions
        ? " The model’s context is full."
        : count > 1
          ? " You asked for this many. Press a token to see in the picture how it was chosen."
          : "";
  const sum =
    used === seed
      ? ""
      : ` (the seed ${seed} plus ${depth} for the ${depth === 1 ? "token" : "tokens"} already written)`;
  return `${[`${counted(n, "token")} written with seed ${used}${sum}`, ...steering.name()].join(" and ")}.${why}`;
}

function sayStopped(error, n) {
  if (error.name === "AbortError")
    setStatus(n ? `Stopped after ${counted(n, "token")}.` : "Stopped. Nothing was written.");
  else if (error instanceof ConnectionLost)
    setStatus(
      `${error.message} ${n ? `${n === 1 ? "The token is" : `The ${n} tokens so far are`} kept.` : "Nothing was written."}`,
      true,
    );
  else showError(error);
}

/**
 * Write `count` tokens after the node `start`; without it, after the current text, or after the
 * prompt if `seed` is given.
 * With `ways` > 1, write that many texts, without `start` from the chosen token on.
 * @param start
 * @param count
 * @param {{seed?: number, ways?: number, usesPrompt?: boolean, plays?: boolean | string}} [options]
 */
async function writeText(start, count, { seed, ways = 1, usesPrompt = false, plays = false } = {}) {
  const controller = new AbortController();
  setBusy(controller);
  if ((usesPrompt && !(await usePrompt())) || !(await steering.ready())) return setBusy(null);
  start ??= ways > 1 ? pinnedNode() : seed === undefined ? state.current : state.tree.root;
  const depth = pathTo(start).length;
  const first = state.tree.ids.length + depth;
  if (first > state.model.n_positions) {
    setBusy(null);
    renderStory(); // of this prompt, not of the one before
    setStatus(
      `The model’s context is full: it reads at most ${state.model.n_positions.toLocaleString("en")} tokens. Shorten the prompt.`,
      true,
    );
    return;
  }
  const settings = readSettings();
  const used = seed ?? (settings.seed + depth) % 2 ** 32; // another draw at each length of the text
  state.current = start;
  state.lastRun = { start, count };
  const body = {
    model: state.model.id,
    prompt: allIds(),
    max_tokens: count,
    seed: used,
    n: ways,
    ...sampling(settings),
    ...steering.fields(),
  };
  const chunks = streamCompletion(body, controller.signal); // before drawing, which takes time
  renderStory();
  setStatus(ways > 1 ? `Writing ${ways} texts from here…` : "Writing…");
  const ends = Array(ways).fill(start);
  try {
    const reason = await grow(chunks, ends, used, settingsNow(), () =>
      showProgress(controller, ways),
    );
    await drawn();
    setStatus(
      ways > 1
        ? `${ways} texts from the same point, with the seeds ${used} to ${used + ways - 1}: ${counted(new Set(ends).size, "distinct text")}.`
        : sayWritten(pathTo(ends[0]).length - depth, used, depth, reason, count),
    );
  } catch (error) {
    sayStopped(
      error,
      ends.reduce((sum, end) => sum + pathTo(end).length - depth, 0),
    );
  }
  setBusy(null);
  renderStory();
  if (!isTreeOfPrompt()) hideStory("The prompt has changed. Write something first.");
  // a single token is to be looked at
  const stays = state.pinned !== null && state.pinned < first && count > 1;
  if (state.current !== start) await pin(stays ? state.pinned : first, plays || count === 1);
}

let written = null; // the promise of the latest text
/** Write as `writeText`, unless a text is being written. */
/** @type {typeof writeText} */
const write = (...args) => (running ? null : (written = writeText(...args)));

/**
 * Write the text of the prompt again, as the model writes now; a text that is being written ends.
 */
async function writeAnew() {
  share.save();
  running?.abort();
  await Promise.allSettled([written]);
  await write(null, readSettings().max_tokens, { seed: readSettings().seed, usesPrompt: true });
}

let drawing = null;

/** Draw what has come, once a frame, however fast the tokens come. */
function showProgress(controller, ways) {
  drawing ??= requestAnimationFrame(() => {
    drawing = null;
    if (running !== controller) return;
    showStory();
    $("story").scrollTop = $("story").scrollHeight;
    const { id, top } = state.current;
    if (ways > 1) river.render();
    else renderChoices(allIds().length - 1, id, top, null);
  });
}

/** Whether the temperature is 0; say what follows. */
function isGreedy(so) {
  const { temperature } = readSettings();
  if (!temperature)
    setStatus(
      `At temperature 0 the likeliest token is always taken, so ${so}. Raise the temperature first.`,
    );
  return !temperature;
}

$("write-form").addEventListener("submit", (event) => {
  event.preventDefault();
  write(null, readSettings().max_tokens, { seed: readSettings().seed, usesPrompt: true });
});
$("river-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const { seed, max_tokens } = readSettings();
  correctSetting($("river-count"));
  if (!isGreedy("all texts would be the same"))
    write(null, max_tokens, { seed, ways: Number($("river-count").value), usesPrompt: true });
});
$("step").addEventListener("click", () => write(null, 1, { usesPrompt: true }));
$("stop").addEventListener("click", () => running?.abort());
$("continue").addEventListener("click", () => write(state.current, readSettings().max_tokens));
$("retry").addEventListener("click", () => {
  if (isGreedy("another try gives the same text")) return;
  $("seed").value = (readSettings().seed + 1) % 2 ** 32;
  write(state.lastRun.start, state.lastRun.count);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("write-form").requestSubmit();
});

// ---- examples

$("examples").append(...EXAMPLES.map(({ prompt }, i) => element("option", { value: i }, prompt)));
$("examples").addEventListener("change", () => {
  const example = EXAMPLES[$("examples").value];
  $("examples").value = "";
  if (example) openExample(example);
});

/** Show an example's prompt, with all parts on. */
async function openExample({ prompt, layer, head, looksAt, next }) {
  clearTimeout(settled); // the picture is shown again below
  running?.abort();
  await Promise.allSettled([written]);
  $("prompt").value = prompt;
  inside.factors.clear();
  const isKnown = state.model.id === MODEL;
  if (isKnown) Object.assign(inside.chosen, { layer, head });
  if (!(await usePrompt())) return;
  const says = isKnown
    ? `Head ${head} of block ${layer} takes much from “${withSpaces(looksAt)}”. Switch the head off under “Inside” and see how likely “${withSpaces(next)}” is then.`
    : "Ready.";
  await goTo(state.tree.root, { says, plays: true });
}

// ---- branches

async function openBranch(leaf) {
  if (running) return;
  state.current = leaf;
  await ensureNumbers().catch(showError);
  await goTo(leaf, { index: state.tree.ids.length });
}

/** Ask for the probabilities of tokens that came from an address, which has only their ids. */
async function ensureNumbers() {
  const path = pathTo(state.current);
  if (path.every((node) => node.logprob !== undefined && node.top)) return;
  if (steering.name().length) return ensureSteeredNumbers(path);
  const response = await post("v1/completions", {
    model: state.model.id,
    prompt: allIds(),
    echo: true,
    max_tokens: 0,
    logprobs: 10,
    return_tokens_as_token_ids: true,
  });
  const tokens = readTokens((await response.json()).choices[0]).slice(state.tree.ids.length);
  path.forEach((node, i) => Object.assign(node, tokens[i]));
}

/** Ask for the same, a request for each token: an echo of the prompt can't be steered. */
async function ensureSteeredNumbers(path) {
  for (const [i, node] of path.entries()) {
    const context = [...state.tree.ids, ...path.slice(0, i).map(({ id }) => id)];
    const { next } = await postJson("api/inspect", requestNext(context, node.id, { include: [] }));
    Object.assign(node, { top: next, logprob: next.find(({ id }) => id === node.id).logprob });
  }
}

// ---- start

let settled = null; // the settings have changed: a timer
const page = {
  state,
  save: () => share.save(),
  changes: () => inside.changes(),
  correctSetting,
  machine,
  showMachine,
  requestNext,
  readSettings,
  allIds,
  tokenText,
  textsOf,
  textOf,
  endOf,
  chip,
  setStatus,
  showError,
  tokenizePrompt,
  ensureNumbers,
  renderStory,
  pin,
  setBusy,
};
const steering = createSteering(page, $("steering-content"), writeAnew);
page.steering = steering;
const inside = createInside(page);
const river = createRiver(page, $("branch-list"), openBranch);
const glow = createSaliency(page, $("story"), $("glow-says"), $("glow"));
const share = createShare(page, inside);

for (const name of SETTINGS) {
  $(name).addEventListener("change", () => {
    const said = correctSetting($(name));
    if (said) setStatus(said);
  });
  $(name).addEventListener("input", () => {
    showSettings();
    share.save();
    clearTimeout(settled);
    if (name in sampling(readSettings())) settled = setTimeout(showAgain, 150);
  });
}

/** Show the panels and the Machine with other settings. */
function showAgain() {
  if (state.pinned !== null && isTreeOfPrompt()) pin(state.pinned);
  else if (!running) tokenizePrompt(); // a second request would take the first one's place
}

onConnection((isLost) => {
  $("connection").hidden = !isLost;
});

async function useModel(name) {
  state.model = await loadModel(name);
  await steering.build();
  $("model").value = name;
  $("model-facts").textContent = Object.entries(state.model.facts)
    .map(([fact, value]) => `${fact}: ${value}`)
    .join(" · ");
}

$("model").addEventListener("change", async () => {
  running?.abort();
  await useModel($("model").value);
  for (const id of ["prompt-tokens", "story"]) $(id).replaceChildren(); // ids of another vocabulary
  state.tree = state.current = state.pinned = state.lastRun = null;
  hideStory("Write something first.");
  setBusy(null);
  await tokenizePrompt();
  share.save();
  setStatus("Ready.");
});

// a link within the page must not take the text out of its address
addEventListener("hashchange", () => share.save());

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value);
  $("key-form").hidden = true;
  start();
});

async function start() {
  try {
    const answer = await getJson("v1/models");
    state.models = answer.data.map((model) => model.id);
    $("model").replaceChildren(
      ...state.models.map((name) => element("option", { value: name }, name)),
    );
    await useModel(share.modelName() ?? state.models[0]);
    setStatus("Ready.");
    if (!(await share.restore())) await tokenizePrompt();
    showSettings();
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    showError(error);
  }
}

showSettings();
if (innerWidth < 640) $("settings").open = false;
start();
