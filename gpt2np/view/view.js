// Helpers for elements and numbers. Text is always set as textContent, so no prompt becomes markup.

/** @type {(id: string) => any} */
export const $ = (id) => document.getElementById(id);
/** @type {(selector: string, within?: ParentNode) => any} */
export const find = (selector, within = document) => within.querySelector(selector);

/** Create an element: a name, attributes or properties, and children. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "p") made.style.setProperty("--p", Number(value).toFixed(4));
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined)
      made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export const button = (label, action, more = {}) =>
  element("button", { type: "button", onclick: action, ...more }, label);

export const times = (n, make) => Array.from({ length: n }, (_, i) => make(i));
export const clamp = (x) => Math.min(1, Math.max(0, x));
export const ease = (x) => {
  const t = clamp(x);
  return t * t * (3 - 2 * t);
};

const minus = (shown) => shown.replace(/-/g, "\u2212");
export const formatNumber = (value, digits = 2) =>
  minus(value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1"));

/** A number with the three digits that a float16 has. */
export function shownNumber(value) {
  const size = Math.abs(value);
  return formatNumber(value, size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0);
}

export const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

/** A probability as a percentage with about two significant digits. */
export function percent(p) {
  const value = 100 * p;
  if (p > 0 && value < 0.01) return "<\u00a00.01\u00a0%";
  return `${value.toFixed(value >= 9.95 ? 0 : value >= 0.095 ? 1 : 2)}\u00a0%`;
}

/** A number with all its digits in `value`, and those of a float32 in the tooltip. */
export const dataElement = (value, shown) =>
  element("data", { value, title: Number(value.toPrecision(7)) }, shown);
export const shareElement = (p) => dataElement(p, percent(p));

const isControl = (byte) => (byte < 0x20 && byte !== 0x09 && byte !== 0x0a) || byte === 0x7f;
const byteText = (byte) =>
  byte < 0x80 && !isControl(byte)
    ? String.fromCharCode(byte)
    : `⟨${byte.toString(16).padStart(2, "0")}⟩`;

/** A token's text after the bytes `before`; a byte that is no whole character is a number: ⟨d9⟩. */
export function decodeToken(bytes, before = []) {
  const texts = [openBytes(before), []].map((open) => exactText([...open, ...bytes]));
  const text = texts.find((each) => each !== null && ![...bytes].every(isControl));
  return text ?? [...bytes].map(byteText).join("");
}

function exactText(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(
      Uint8Array.from(bytes),
    );
  } catch {
    return null;
  }
}

/** The last bytes of a text that begin a character without completing it. */
function openBytes(bytes) {
  const start = bytes.findLastIndex((byte) => byte < 0x80 || byte >= 0xc0);
  const size = start < 0 ? 0 : [0xc0, 0xe0, 0xf0].filter((lead) => bytes[start] >= lead).length + 1;
  return size > bytes.length - start ? bytes.slice(start) : [];
}

/** Texts of consecutive tokens; a character of several tokens stands at the last of them. */
export function decodeTokens(tokens) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return tokens.map((bytes) => decoder.decode(bytes, { stream: true }));
}

export const visible = (text) =>
  text
    .replace(/\n/g, "↵")
    .replace(/\t/g, "→")
    .replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)
    .replace(/^\p{M}/u, "◌$&");

export const withSpaces = (text) => visible(text).replace(/ /g, "␣") || "∅";

/** A token's text within a text; "·" for a part of a character that a later token completes. */
export const inText = (text, bytes) => text || (bytes.length ? "·" : "");

export const chipElement = (text, id) =>
  element("bdi", { class: "token", "data-id": id }, withSpaces(text));

/** Arrow keys move the focus among the elements of a group; one of them is in the tab order. */
export function rovingFocus(group, selector) {
  const items = () => [...group.querySelectorAll(selector)];
  const select = (item) => {
    for (const other of items()) other.tabIndex = other === item ? 0 : -1;
  };
  group.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) select(item);
  });
  group.addEventListener("keydown", (event) => {
    const item = event.target.closest(selector);
    if (!item) return;
    const all = items();
    const columns = Number(group.dataset.columns || 1);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const ends = { Home: 0, End: all.length - 1 };
    const next =
      event.key in ends ? all[ends[event.key]] : all[all.indexOf(item) + steps[event.key]];
    if (!next) return;
    event.preventDefault();
    select(next);
    next.focus();
  });
  return {
    select,
    reset: () => {
      const all = items();
      if (all.length && !all.some((i) => i.tabIndex === 0)) all[0].tabIndex = 0;
    },
  };
}
