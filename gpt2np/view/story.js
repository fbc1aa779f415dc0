import { ConnectionLost, ServerError, readTokens, streamCompletion } from "./api.js";
import { renderBranches } from "./branches.js";
import { lineChipOf } from "./numbers.js";
import { readPass } from "./pass.js";
import { machine } from "./picture.js";
import { renderParts } from "./parts.js";
import { usePrompt } from "./prompt.js";
import { glow } from "./saliency.js";
import { save } from "./share.js";
import {
  allIds,
  askNext,
  changes,
  chip,
  idsOf,
  isEnd,
  isTreeOfPrompt,
  offKey,
  partName,
  readSettings,
  sampling,
  state,
  textsOf,
} from "./state.js";
import { pathTo } from "./tree.js";
import {
  $,
  counted,
  element,
  find,
  percent,
  rovingFocus,
  shareElement,
  times,
  visible,
  withSpaces,
} from "./view.js";

const SECONDS = [5, 2, 1.2, 0.7, 0.4]; // of the pass of each of the first tokens
const LEAST_SECONDS = 0.04; // of each later token, which the picture follows if it can
let guides = true; // whether the next first token is shown with stops

export function setStatus(text, isWrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", isWrong);
}

export function showError(error, kept = "") {
  if (error.name === "AbortError") return;
  if (!(error instanceof ServerError || error instanceof ConnectionLost)) throw error;
  if (error instanceof ServerError && error.status === 401) $("key-form").hidden = false;
  setStatus(error.message + kept, true);
}

/** Show which buttons there are, now that `controller` ends what is being written, or nothing. */
export function setBusy(controller) {
  state.running = controller;
  const hasText = Boolean(state.tree) && isTreeOfPrompt();
  $("generate").textContent = controller ? "Stop" : hasText ? "Write on ▷" : "Write ▷";
  const next = !hasText ? "generate" : state.off.size ? "teach-button" : "off-button"; // to try
  for (const name of ["generate", "off-button", "teach-button"])
    $(name).classList.toggle("primary", name === next && !controller);
  for (const id of ["retry", "edit"]) $(id).hidden = Boolean(controller) || !hasText;
  $("prompt").hidden = hasText || Boolean(controller);
  machine.guide.isWriting = Boolean(controller);
}

const shownText = ({ text, isLast }) => (text === "·" && !isLast ? "" : visible(text));

function pieceElement(node, index) {
  const { id, text } = node;
  const more = { role: "button", tabindex: -1, "data-index": index };
  if (id === null)
    return element("span", { ...more, class: "piece next", "aria-label": "the next token" }, text);
  const p = node.logprob === undefined ? null : Math.exp(node.logprob);
  const share = p === null ? "" : `, probability ${percent(p)}`;
  const label = `token ${index}: ${withSpaces(text)}${share}`;
  const kinds = ["piece", isEnd(id) && "end", node.isGiven && "given", node.isChanged && "changed"];
  return element(
    "span", // a button would not break across lines
    {
      ...{ ...more, class: kinds.filter(Boolean).join(" "), "data-id": id, "data-p": p },
      ...{ "aria-label": label, title: label, p: p ?? 0 },
    },
    shownText(node),
    ...(text.endsWith("\n") ? [element("br")] : []),
  );
}

/** The text up to a node, with what differs from another text marked. */
function nodesOf(end, marks = []) {
  const given = state.tree.ids.map((id) => ({ id, isGiven: true }));
  const nodes = [...given, ...pathTo(end)];
  const texts = textsOf(nodes.map(({ id }) => id));
  return nodes.map((node, i) => ({
    ...{ ...node, text: texts[i], isLast: i === nodes.length - 1 },
    isChanged: Boolean(marks[i]),
  }));
}

function wordsOf(ids) {
  const words = [];
  let before = "";
  for (const [i, text] of textsOf(ids).entries()) {
    if (/^[\p{L}\p{N}]{2}$/u.test(before.slice(-1) + text[0])) words.at(-1).push(ids[i]);
    else words.push([ids[i]]);
    before = text;
  }
  return words;
}

/** Of two texts, whether the word of each token is not in the longest text that both contain. */
function differences(...both) {
  const words = both.map(wordsOf);
  const [own, others] = words.map((each) => each.map(String));
  const common = times(own.length + 1, () => new Uint16Array(others.length + 1));
  for (let i = own.length - 1; i >= 0; i--)
    for (let k = others.length - 1; k >= 0; k--)
      common[i][k] =
        own[i] === others[k]
          ? common[i + 1][k + 1] + 1
          : Math.max(common[i + 1][k], common[i][k + 1]);
  const marks = words.map((each) => each.map(() => true));
  for (let i = 0, k = 0; i < own.length && k < others.length;)
    if (own[i] === others[k]) marks[0][i++] = marks[1][k++] = false;
    else if (common[i + 1][k] >= common[i][k + 1]) i++;
    else k++;
  return words.map((each, n) => each.flatMap((word, i) => word.map(() => marks[n][i])));
}

/** Show the pieces of the text; the first ones stay as long as their keys are the same. */
function showPieces(nodes) {
  const pieces = [...$("story").children];
  const keys = nodes.map(keyOf);
  const changed = keys.findIndex((key, i) => pieces[i]?.key !== key);
  const first = changed < 0 ? keys.length : changed;
  for (const piece of pieces.slice(first)) piece.remove();
  const made = nodes.map((node, i) =>
    i < first ? "" : Object.assign(pieceElement(node, i), { key: keys[i] }),
  );
  $("story").append(...made.slice(first));
}

const keyOf = ({ id, logprob, isGiven, isChanged, text, isLast }) =>
  `${id} ${logprob} ${isGiven} ${isChanged} ${text} ${text === "·" && isLast}`;

const allOn = element("button", { type: "button" }, "All parts on");

const offNames = (off = state.off) => [...off].map(partName).join(", ");

export function renderStory() {
  const isShown = isTreeOfPrompt() && Boolean(state.tree);
  $("story").hidden = !isShown;
  for (const id of ["intact", "intact-name"]) $(id).hidden = !isShown || !state.intact;
  $("story-name").hidden = !isShown || !state.off.size;
  if (!isShown) return;
  const [ids, intact] = [allIds(), state.intact && idsOf(state.intact)];
  const isDone = state.intact && !state.running;
  const [own, lost] = isDone ? differences(ids, intact) : [];
  const isOpen = !state.running || state.pinned === null; // the next token is asked for
  const nodes = [...nodesOf(state.current, own), ...(isOpen ? [{ id: null, text: "?" }] : [])];
  showPieces(nodes);
  if (state.intact) {
    const textOf = (node) =>
      element("span", { class: node.isChanged && "changed" }, shownText(node));
    $("intact").replaceChildren(...nodesOf(state.intact, lost).map(textOf));
  }
  if (state.off.size) {
    const name = element("b", {}, `Without ${offNames()}`);
    const marks = element("span", { class: "changed" }, "marked words");
    const effect =
      firstChange() === undefined ? ["same text"] : ["so only this changed the ", marks];
    const same = [element("span"), ". Same random numbers, ", ...effect, "."];
    const says = isDone ? same : state.running ? [" · writing…"] : [];
    $("story-name").replaceChildren(name, ...says, allOn);
  }
  markPinned();
  save();
}

const storyFocus = rovingFocus($("story"), ".piece");

function show(text, token) {
  if (!token) return;
  const line = parseFloat(getComputedStyle(text).lineHeight);
  text.scrollTop = line * Math.max(0, Math.floor(token.offsetTop / line) - 1);
}

function markPinned() {
  for (const piece of $("story").children) {
    const is = Number(piece.dataset.index) === state.pinned;
    piece.setAttribute("aria-pressed", String(is));
    if (is) storyFocus.select(piece);
  }
  storyFocus.reset();
  const pinned = $("story").querySelector('[aria-pressed="true"]') ?? $("story").lastChild;
  show($("story"), $("story").querySelector(".changed") ?? pinned);
  show($("intact"), $("intact").querySelector(".changed"));
}

/** Show the pass before the token at `index`, or before the next one. */
export async function pin(index) {
  if (index === null || state.running || !isTreeOfPrompt()) return;
  state.pinned = index;
  markPinned();
  save();
  const ids = allIds();
  const [context, token] = [ids.slice(0, index), ids[index] ?? null];
  glow(index);
  if (!context.length) return setStatus("Nothing stands before the first token.");
  await showPass(context, token);
}

let asked = 0; // the number of the latest pass to show

/** Hide the picture; a pass that is on its way comes too late. */
export function hidePass() {
  asked += 1;
  $("machine").removeAttribute("aria-busy");
  $("machine").hidden = true;
}

/** Say what the head that is off took from an earlier token. */
function sayFetched(pass) {
  if (state.off.size !== 1) return;
  const [part] = state.off;
  const looks = pass.looks(parseInt(part, 10), pass.count - 1);
  const look = looks.find((each) => each.part === part);
  if (!look) return; // the part is no head
  const says = [": it took ", shareElement(look.weight), " from ", lineChipOf(pass, look.key)];
  find("#story-name span")?.replaceChildren(...says);
}

/** Show the pass over `context`, after which `token` came (null: nothing yet). With `base`, a
    model, show beside it what another `model` predicts now. */
export async function showPass(context, token, options = {}) {
  const number = ++asked;
  $("machine").setAttribute("aria-busy", "true");
  const { draw, model = state.model.id, base, signal } = options;
  const before = state.intact ? idsOf(state.intact) : [];
  const isSame = context.every((id, i) => id === before[i]);
  const instead = isSame ? (before[context.length] ?? null) : null;
  const ask = async () => {
    const now = await askNext(context, token, { draw, model, signal });
    if (!state.off.size && !base) return [now, null];
    const others = now.next.slice(0, 9).map(({ id }) => id); // each row shows what it was before
    const off = base ? state.off : new Set();
    const old = await askNext(context, token, { draw, off, others, model: base ?? model, signal });
    others.splice(0, 9, old.next[0].id, instead);
    return [await askNext(context, token, { draw, others, model, signal }), old];
  };
  const [described, intact] = await ask().finally(
    () => number === asked && $("machine").removeAttribute("aria-busy"),
  );
  if (number !== asked) return null;
  const isOwn = model === state.model.id;
  const title = state.off.size ? "With all parts → without" : "Chance → room on the ruler";
  machine.show(described, {
    ...{ token, instead, isOwn, off: state.off, was: intact?.next },
    title: base ? "Untaught → taught" : title,
    // the prompt stays
    picks: isOwn && (!isTreeOfPrompt() || context.length >= state.tree.ids.length),
    ...options,
  });
  if (intact && !base) sayFetched(readPass(intact));
  renderParts();
  return described;
}

export async function goTo(node, index) {
  Object.assign(state, { current: node, pinned: null });
  setBusy(null);
  renderStory();
  renderBranches();
  await pin(index ?? allIds().length);
}

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** Read a stream ahead of the picture: the server does not wait for the class. */
function readAhead(chunks) {
  const items = [];
  let end = null;
  let wake = /** @type {(value?: any) => void} */ (() => {});
  const read = async () => {
    try {
      for await (const { choices } of chunks) {
        items.push(...readTokens(choices[0]));
        end = choices[0].finish_reason ?? end;
        wake();
      }
    } catch (error) {
      end = error;
    }
    end ??= "stop";
    wake();
  };
  const whole = read();
  return {
    /** The next token, or null at the end. */
    async next() {
      while (!items.length && end === null) await new Promise((resolve) => (wake = resolve));
      if (items.length) return items.shift();
      await whole;
      if (end instanceof Error) throw end;
      return null;
    },
    reason: () => end,
  };
}

function writeToken(token, draw) {
  const drawn = { ...token, off: offKey(), draw: [draw.seed, draw.n_drawn] };
  state.current = state.tree.add(state.current, drawn);
  state.pinned = allIds().length - 1;
  renderStory();
}

/** The block in which the guess becomes the last one, and the look without whose head it does not;
    or null. */
async function findTurn(pass, signal) {
  const last = pass.lens.at(-1).ids[0];
  const layer = pass.lens.findLastIndex(({ ids }) => ids[0] !== last);
  if (layer < 1) return null; // before the first block there is no guess
  for (const look of pass.looks(layer, pass.count - 1)) {
    if (look.weight < 0.5) break;
    const off = new Set([...state.off, look.part]);
    const { next } = await askNext(pass.ids, null, { off, signal });
    if (next[0].id === last) continue;
    const isAgain = pass.lineIds[look.key - 1] === pass.lineIds.at(-1);
    return { layer, look: { ...look, before: isAgain ? look.key - 1 : null } };
  }
  return { layer };
}

/** Play the passes of the tokens as they come, the first slowly, and write each. */
async function playTokens(ahead, seed, signal, isQuick) {
  let following = null;
  let isGuided = false; // and nobody has left the guide
  for (let i = 0; ; i++) {
    const token = await ahead.next();
    if (!token || signal.aborted) return i;
    const context = allIds();
    const draw = { seed, n_drawn: i };
    const seconds = isQuick ? 0 : (SECONDS[i] ?? 0);
    if (seconds) {
      const waits = isGuided && i === 1;
      const joined = waits && chip(state.current.id, context.slice(0, -1));
      const says = waits && [joined, " joins the rows. For the next piece, all starts again."];
      const isFirst = guides && i === 0;
      state.pinned = null;
      renderStory();
      const first = isFirst && (await askNext(context, token.id, { draw, signal }));
      const turn = first && (await findTurn(readPass(first), signal));
      await showPass(context, token.id, { draw, signal, plays: true, says });
      const onEnd = () => !signal.aborted && writeToken(token, draw);
      if (signal.aborted) return i;
      const played = machine.guide.play({ seconds, onEnd, isGuided: isFirst, waits, turn });
      if (isFirst || waits) find(".forth").focus({ preventScroll: true });
      isGuided = await played;
      if (i === 0 && !signal.aborted) guides = false;
    } else {
      writeToken(token, draw);
      following ??= showPass(context, token.id, { draw }).finally(() => (following = null));
      const least = Math.max(LEAST_SECONDS, 0.3 * 0.98 ** i); // can just be read
      await Promise.all([wait(least), Promise.race([following, wait(3 * LEAST_SECONDS)])]);
    }
  }
}

function sayWritten(n, reason) {
  const isFull = allIds().length > state.model.n_positions - 1;
  const why =
    reason === "stop" ? " The model ended the text." : isFull ? " The context is full." : "";
  const how = state.intact ? "" : " Green: likely. Press a word.";
  setStatus(`${counted(n, "token")} written.${how}${why}`);
}

/** The index of the first token that differs from the text with all parts on; or undefined. */
function firstChange() {
  const before = state.intact ? idsOf(state.intact) : allIds();
  const index = allIds().findIndex((id, i) => id !== before[i]);
  return index < 0 ? undefined : index;
}

/** Write `count` tokens after `start`; the picture plays the first passes, unless `isQuick`. */
async function writeText(start, count, seed, isQuick) {
  const controller = new AbortController();
  const { signal } = controller;
  const depth = pathTo(start).length;
  if (state.tree.ids.length + depth > state.model.n_positions) {
    setBusy(null);
    renderStory();
    return setStatus(
      `The model’s context is full: it holds ${state.model.n_positions} tokens. Shorten the text.`,
      true,
    );
  }
  Object.assign(state, { current: start, lastRun: { start, count, seed } });
  setBusy(controller);
  glow(null);
  const body = {
    ...{ model: state.model.id, prompt: allIds(), max_tokens: count, seed },
    ...{ ...sampling(), ...changes() },
  };
  const ahead = readAhead(streamCompletion(body, signal));
  signal.addEventListener("abort", () => machine.guide.stop());
  renderStory();
  setStatus(isQuick ? "Writing…" : "");
  let error = null;
  try {
    const n = await playTokens(ahead, seed, signal, isQuick);
    if (!signal.aborted) sayWritten(n, ahead.reason());
  } catch (thrown) {
    error = thrown;
  }
  const n = pathTo(state.current).length - depth;
  const kept = n ? `${counted(n, "token")} kept.` : "Nothing was written.";
  if (signal.aborted) setStatus(`Stopped. ${kept}`);
  if (n) state.pinned = firstChange() ?? allIds().length - 1;
  setBusy(null);
  renderStory();
  renderBranches();
  if (!isTreeOfPrompt()) return;
  if (error && !signal.aborted) return showError(error, ` ${kept}`);
  const ids = allIds();
  const ends = state.off.size ? null : ["What is one part good for? Switch it off and compare."];
  if (state.pinned !== null)
    await showPass(ids.slice(0, state.pinned), ids[state.pinned] ?? null, { ends });
}

let written = null; // the promise of the latest text

const write = (...args) => (state.running ? null : (written = writeText(...args)));

export async function stop() {
  state.running?.abort();
  await Promise.allSettled([written]);
}

/** The seed of a text that goes on after `depth` tokens: other random numbers than before. */
const seedAt = (depth) => (readSettings().seed + depth) % 2 ** 32;

async function writeOn(node = null) {
  if (state.running || !(await usePrompt())) return;
  const start = node ?? ($("prompt").hidden ? state.current : state.tree.root);
  const depth = pathTo(start).length;
  state.intact = null; // the two texts were of one length
  await write(start, readSettings().max_tokens, seedAt(depth), !guides && depth > 0);
}

/** Replace the token at an index by another one, as a new branch, and go on writing. */
export async function choose(index, { id, logprob }) {
  if (state.running) return;
  const path = pathTo(state.current);
  const parent = path[index - state.tree.ids.length - 1] ?? state.tree.root;
  const node = state.tree.add(parent, { id, logprob, off: offKey() });
  Object.assign(state, { current: node, pinned: index, intact: null });
  renderStory();
  if (isEnd(id)) setStatus("The text ends here: you picked the end-of-text token.");
  else await write(node, readSettings().max_tokens, seedAt(pathTo(node).length), true);
}

export async function writeAgain() {
  await stop();
  if (!(await usePrompt())) return;
  if (!state.off.size) {
    const intact = state.intact ?? state.current;
    state.intact = null;
    setStatus("");
    return goTo(intact, state.pinned ?? undefined);
  }
  const { start, count, seed } = state.lastRun ?? {
    start: state.tree.root,
    ...{ count: readSettings().max_tokens, seed: seedAt(0) },
  };
  if (!state.intact) {
    const off = state.off;
    state.off = new Set();
    if (state.current === start) {
      const first = write(start, count, seed, true);
      setStatus(`Off: ${offNames(off)}. First the text with all parts…`);
      await first;
    }
    state.intact = state.current;
    state.off = off;
  }
  const second = write(start, count, seed, true);
  setStatus(`Off: ${offNames()}. Writing again…`);
  await second;
}

async function retry() {
  if (!readSettings().temperature)
    return setStatus("At temperature 0 another try gives the same text.");
  $("seed").value = String((readSettings().seed + 1) % 2 ** 32);
  const start = state.lastRun?.start ?? state.tree.root;
  state.intact = null;
  await write(start, readSettings().max_tokens, seedAt(pathTo(start).length), true);
}

export function startStory() {
  for (const text of [$("story"), $("intact")])
    text.addEventListener("scroll", () => text.classList.toggle("cut", text.scrollTop > 1));
  const indexOf = (event) => {
    const piece = event.target.closest(".piece");
    return piece ? Number(piece.dataset.index) : null;
  };
  $("story").addEventListener("click", (event) => pin(indexOf(event)));
  $("story").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pin(indexOf(event));
  });
  $("write-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.running) stop();
    else writeOn();
  });
  $("retry").addEventListener("click", retry);
  allOn.addEventListener("click", () => {
    $("off-button").focus({ preventScroll: true }); // the line goes
    $("parts-on").click();
  });
}
