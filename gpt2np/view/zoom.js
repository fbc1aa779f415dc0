import { blockScene, headScene, scoreScene, tokenScene } from "./scenes.js";
import { vectorTable } from "./numbers.js";
import { button, element, rovingFocus, withSpaces } from "./view.js";

const SCENES = { block: blockScene, head: headScene, score: scoreScene, token: tokenScene };
const DESCRIBED = ["block", "head"]; // levels that need no source

function pathOf(level) {
  const { kind, layer, head } = level;
  const up = { head: { kind: "block", layer }, score: { kind: "head", layer, head } }[kind];
  return up ? [...pathOf(up), level] : [level];
}

/** What the scene of a level needs beyond the description, from `source`; {} without a source. */
async function loadLevel({ kind, layer, id }, pass, source) {
  if (!source || kind === "block") return {};
  if (kind === "token") return { token: await source.token(id) };
  const names = ["q", "k", "v"].map((name) => `blocks.${layer}.attn.${name}`);
  const found = Object.entries(await source.points(pass, names));
  return Object.fromEntries(found.map(([name, array]) => [name.at(-1), array]));
}

/** Let the user go into a picture, which the Machine (`host`) shows. */
export function createZoom(host) {
  const { canvas, picture, crumbs } = host;
  let path = []; // of levels; empty: the model
  let scene = host.model;
  let data = {};
  let loads = 0;
  const layer = element("div", {
    class: "machine-targets",
    role: "group",
    "aria-label": "Parts to go into",
  });
  const tip = element("p", { class: "machine-tip", hidden: true });
  const summary = element("summary", {}, "These numbers as a table");
  const sheet = element("details", { class: "zoom-table", hidden: true }, summary);
  picture.append(layer, tip);
  picture.tabIndex = -1; // keeps the focus where there is nothing to go into

  function nameOf({ kind, layer, head, key, id }) {
    const { pass, line } = host.context();
    const text = (at = line) => withSpaces(pass.lineText(Math.min(at, line)));
    return {
      block: `block ${layer}`,
      head: `head ${head}`,
      score: `${text()} looks at ${text(key)}`,
      token: `token ${id}`,
    }[kind];
  }
  /** Whether there are numbers for a level: those of the description, or of the source. */
  const isThere = (level) => DESCRIBED.includes(level.kind) || Boolean(host.source?.has(level));

  function build() {
    const level = path.at(-1);
    scene = level ? SCENES[level.kind](level, { ...host.context(), data }) : host.model;
    host.say(scene.says);
    showCrumbs();
    showItems();
    picture.dataset.level = level?.kind ?? "model";
    sheet.hidden = !level;
    picture.classList.toggle("inside", Boolean(level));
  }

  function showCrumbs() {
    const crumb = (name, to) =>
      to.length === path.length
        ? element("li", { "aria-current": "location" }, name)
        : element(
            "li",
            {},
            button(name, () => enter(to)),
          );
    const down = path.map((level, i) => crumb(nameOf(level), path.slice(0, i + 1)));
    crumbs.replaceChildren(
      element("ol", { hidden: !path.length }, crumb("the model", []), ...down),
    );
  }

  function showItems() {
    const focused = [...layer.children].indexOf(document.activeElement);
    layer.replaceChildren(
      ...scene.items.map((item) => {
        const { x, y, w, h, text = "", to, name = "", label } = item;
        const press = (event) => {
          event.stopPropagation();
          if (event.detail === 0 || !enterAt(event)) enter(pathOf(to));
        };
        const made =
          to && isThere(to)
            ? button(text, press, { class: `target ${name}`, "aria-label": label, tabindex: -1 })
            : element("span", { class: `target ${name}` }, text);
        Object.assign(made.style, {
          left: `${x}px`,
          top: `${y}px`,
          width: w ? `${w}px` : "auto",
          height: `${h}px`,
        });
        return made;
      }),
    );
    focus.reset();
    if (focused >= 0)
      (layer.children[focused]?.matches("button") ? layer.children[focused] : firstItem()).focus({
        preventScroll: true,
      });
  }

  const focus = rovingFocus(layer, "button");
  const firstItem = () =>
    layer.querySelector("button.current") ?? layer.querySelector("button") ?? picture;

  async function enter(next) {
    if (next.length && !host.mayEnter()) return;
    const mine = ++loads;
    const level = next.at(-1);
    if (level && !isThere(level)) return;
    picture.setAttribute("aria-busy", "true");
    try {
      const loaded = level ? await loadLevel(level, host.context().pass, host.source) : {};
      if (mine === loads) change(next, loaded);
    } catch (error) {
      if (mine === loads) host.say([error.message]);
    } finally {
      if (mine === loads) picture.removeAttribute("aria-busy");
    }
  }

  function show() {
    build();
    if (path.length) draw(); // else the Machine does
  }

  function change(next, loaded) {
    const hadFocus =
      picture.contains(document.activeElement) || crumbs.contains(document.activeElement);
    path = next;
    data = loaded;
    sheet.open = false;
    tip.hidden = true;
    build();
    host.onChange(path.at(-1));
    if (hadFocus) firstItem().focus({ preventScroll: true });
    if (path.length) draw();
  }

  function out() {
    if (path.length) enter(path.slice(0, -1));
  }

  function draw() {
    const context = canvas.getContext("2d");
    const { width, height } = host.context();
    const scale = canvas.width / width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.globalAlpha = 1;
    context.clearRect(0, 0, width, height);
    scene.paint(context);
  }

  const at = (event) => {
    const { left, top } = canvas.parentElement.getBoundingClientRect();
    return scene.at?.(event.clientX - left, event.clientY - top);
  };

  function point(event) {
    const found = at(event);
    host.pointAt(found?.arc ?? null);
    if (!path.length) host.lookAt(found?.line ?? null);
    tip.hidden = !found?.says;
    tip.replaceChildren(...(found?.says ?? []));
    const { left, top, width, height } = picture.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    tip.style.left = `${x + (x > width / 2 ? -14 - tip.offsetWidth : 14)}px`; // inside
    tip.style.top = `${y + (y > height / 2 ? -14 - tip.offsetHeight : 14)}px`;
    const cursor = found?.part ? "pointer" : found?.to ? "zoom-in" : "default";
    canvas.style.cursor = layer.style.cursor = cursor;
  }

  function enterAt(event) {
    const found = at(event);
    tip.hidden = true;
    if (found?.part) host.press(found.part);
    if (found?.line !== undefined) host.setLine(found.line);
    if (found?.to) enter(pathOf(found.to));
    return Boolean(found?.to);
  }

  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => {
    tip.hidden = true;
    host.pointAt(null);
  });
  picture.addEventListener("click", (event) => {
    if (event.detail) enterAt(event);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && path.length && !event.defaultPrevented) out();
  });

  sheet.addEventListener("toggle", () => {
    const { table = ["", []] } = scene;
    sheet.replaceChildren(summary, ...(sheet.open ? [vectorTable(...table)] : []));
  });

  return {
    draw,
    sheet,
    open: (level) => enter(pathOf(level)),
    /** Leave for the model at once, without a picture in between. */
    leave() {
      loads++;
      if (path.length) {
        path = [];
        data = {};
        build();
        host.onChange();
      }
    },
    async refresh(isNew = false) {
      if (isNew) await enter(path);
      else show();
    },
    get isInside() {
      return path.length > 0;
    },
    get isToken() {
      return path[0]?.kind === "token";
    },
  };
}
