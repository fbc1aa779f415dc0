import { STRETCHED } from "./draw.js";
import { lineChipOf, nextChipOf } from "./numbers.js";
import { button, counted, element, shareElement } from "./view.js";

/** Seconds of a phase; all blocks after the first take about seven. */
const secondsOf = ({ kind, layer }, { n_layer }) =>
  ({
    embed: 1.5,
    attention: layer ? 4.5 / n_layer : 2,
    mlp: layer ? 3.3 / n_layer : 1.5,
    answer: 0.8,
    draw: 2,
  })[kind];

/** Where the guide waits: ends of phases, of blocks before and after the turn; in the draw. */
function stopsOf({ length }, turn) {
  const turns = turn ? [1 + 2 * turn.layer, 3 + 2 * turn.layer] : [length - 2];
  return [...new Set([1, 2, 3, ...turns, length - 1 + STRETCHED, length])];
}

/** The pieces of the word that begins at a line. */
function wordAt(pass, line) {
  const pieces = [lineChipOf(pass, line)];
  while (++line < pass.count - 1 && /^\p{L}/u.test(pass.lineText(line)))
    pieces.push(lineChipOf(pass, line));
  return pieces;
}

/** Play the passes in the picture of `host`; `onRun()` takes the focus of a button that goes. */
export function createGuide(host, onRun) {
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  let stops = null;
  let turn = null; // the block that turns the guess, and the look back that did it
  let isResult = false; // shown first: the likeliest token, and the look back that did it
  let isWriting = false; // a text, of which this is a pass
  let pace = 1;
  let playing = null; // { resolve, onEnd } of a pass that plays or waits
  let frame = 0;
  const dots = element("span", { class: "dots", "aria-hidden": "true" });
  const play = button("Play", () => (frame ? pause() : start()), { class: "play" });
  const skip = button("Just write", () => skipStops(), { class: "skip-stops" });
  const next = button("Next ▸", () => goOn(), { class: "forth primary" });
  host.range.before(dots);
  host.range.after(play, skip, next);
  const end = () => host.phases().length;
  const isAtEnd = () => host.moment >= end();

  /** Show the buttons of the mode: none at "rest" or when it "writes"; some in "guide", "free". */
  function update() {
    const waiting = host.isOpen() ? "rest" : isWriting ? "writes" : "free";
    const mode = (host.root.dataset.mode = stops ? "guide" : waiting);
    const hadFocus = [skip, next].some((each) => each === document.activeElement);
    play.hidden = host.range.hidden = mode === "guide" || mode === "rest";
    skip.hidden = dots.hidden = mode !== "guide";
    next.hidden = mode === "rest"; // while a text is written they keep their place, out of sight
    next.classList.toggle("primary", mode === "guide");
    if (hadFocus && mode === "writes") onRun();
    play.textContent = frame ? "Pause" : "Play";
    next.textContent = stops?.[0] === 0 ? "Keep writing ▸" : "Next ▸";
    const of = [0, ...stopsOf(host.phases(), turn), Infinity];
    const now = isResult ? 0 : stops?.[0] === 0 ? Infinity : host.moment;
    const passed = of.filter((stop) => now >= stop).length;
    dots.textContent = "●".repeat(passed) + "○".repeat(of.length - passed);
    host.refresh();
  }

  function start() {
    host.leave();
    if (isAtEnd()) host.moment = 0;
    run(end());
  }

  function go() {
    host.leave();
    if (isResult && stops) host.moment = 0;
    run(stops?.find((stop) => stop > host.moment) ?? end());
  }

  function run(to) {
    isResult = false;
    cancelAnimationFrame(frame);
    let before = performance.now();
    const tick = (now) => {
      const phase = host.phases()[Math.min(end() - 1, Math.floor(host.moment))];
      const passed = (Math.max(0, now - before) / 1000) * pace;
      const moment = Math.min(to, host.moment + passed / secondsOf(phase, host.pass()));
      before = now;
      frame = moment < to ? requestAnimationFrame(tick) : 0;
      host.moment = moment;
      if (frame) host.render();
      else arrive();
    };
    if (reducedMotion.matches) {
      host.moment = to;
      arrive();
    } else {
      frame = requestAnimationFrame(tick);
      update();
    }
  }

  function arrive() {
    frame = 0;
    if (isAtEnd()) playing?.onEnd();
    if (isAtEnd() && !stops) finish();
    else update();
  }

  function finish() {
    const { resolve } = playing ?? {};
    const wasGuided = Boolean(stops);
    playing = stops = null;
    isResult = false;
    pace = 1;
    pause();
    resolve?.(wasGuided);
  }

  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
    update();
  }

  function skipStops() {
    stops = null;
    if (isAtEnd()) finish();
    else go();
  }

  function goOn() {
    if (!stops) step();
    else if (frame) {
      pause();
      host.moment = stops.find((stop) => stop > host.moment) ?? end();
      arrive();
    } else if (isAtEnd()) finish();
    else if (host.moment < stops.at(-1)) go();
    else skipStops();
  }

  function step() {
    host.leave();
    if (isAtEnd()) host.moment = 0;
    run(Math.floor(host.moment + 1e-9) + 1);
  }

  return {
    update,
    pause,
    get stops() {
      return stops;
    },
    get isWriting() {
      return isWriting;
    },
    set isWriting(is) {
      isWriting = is;
      update();
    },
    get isResult() {
      return isResult;
    },
    /** The look back that is told. */
    look: ({ layer }) => (isResult || turn?.layer === layer) && turn?.look,
    /** The result, or what the later blocks do. */
    says({ layer }, passed) {
      const pass = host.pass();
      const near = (line) => lineChipOf(pass, line);
      const { key, before } = turn?.look ?? { key: null, before: null };
      const guessAfter = (k) => nextChipOf(pass, pass.lens[k].ids[0]);
      if (isResult) {
        const back = key === null ? [] : [": a head looked back at ", near(key)];
        const again = [": earlier, ", ...wordAt(pass, key), " followed ", near(before)];
        const why = before === null ? back : again;
        return [guessAfter(pass.n_layer), " is likeliest", ...why, ". How? Press Next."];
      }
      if (!stops || !passed || layer === undefined) return null;
      const guess = guessAfter(passed);
      if (turn?.layer === passed - 1) {
        const where = before === null ? [] : [", which followed ", near(before)];
        const did = key === null ? ["In this block"] : ["A head looks at ", near(key), ...where];
        return [...did, ": ", guessAfter(passed - 1), " becomes ", guess, "."];
      }
      const neurons = `${pass.n_inner.toLocaleString("en")} neurons (small calculators) follow.`;
      const rounds = `${counted(passed - 1, "more block")} did the same. Guess: `;
      const sure = shareElement(pass.lens[passed].probabilities[0]);
      return [passed > 1 ? rounds : `${neurons} First guess: `, guess, ", ", sure, " sure."];
    },
    /** Play the pass; the promise tells at its end whether nobody left the guide. */
    play({ seconds, isGuided, waits, onEnd, turn: found }) {
      if (!waits) turn = found;
      isResult = isGuided;
      stops = waits ? [0] : isGuided ? stopsOf(host.phases(), turn) : null;
      const whole = host.phases().reduce((sum, each) => sum + secondsOf(each, host.pass()), 0);
      pace = isGuided ? 1 : whole / seconds;
      return new Promise((resolve) => {
        playing = { resolve, onEnd };
        if (isResult) host.moment = end() - 1;
        if (isResult || waits) update();
        else go();
      });
    },
    stop: finish,
  };
}
