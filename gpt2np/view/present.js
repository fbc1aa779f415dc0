// Present mode: the lesson of the guide as steps, one thing at a time in large letters, with a timer.

import { EXAMPLES } from "./examples.js";
import { $, button, element, find } from "./view.js";

const setTemperature = (value) => {
  $("temperature").value = value;
  $("temperature").dispatchEvent(new Event("input", { bubbles: true }));
};
const press = (id) => $(id).click();
const writeAt = (temperature) => () => {
  setTemperature(temperature);
  press("generate");
};
const openHans = (plays) => ({ openExample }) => {
  setTemperature(0.8);
  openExample(EXAMPLES[1], plays);
};

/** `shows` is the one thing on the screen beside the text: machine, choices, settings or share; `enters` is done when the step begins. Together they take ten minutes. */
export const STEPS = [
  { title: "A model guesses", minutes: 2, shows: "machine", says: "The model reads the text and gives every token it knows a probability. A draw picks one, which is added to the text.", actions: [["One token", () => press("step")], ["Write on", () => press("continue")]] },
  { title: "It could have gone differently", minutes: 2, shows: "choices", says: "Press a pale token of the text: the model was unsure. What else could have come? Vote, and press the winner.", actions: [["Write", () => press("generate")], ["Undo", () => press("undo")]] },
  { title: "How wild?", minutes: 2, shows: "settings", says: "At temperature 0 the likeliest token is always taken. At 1.5 unlikely tokens come more often. Which text is better?", actions: [["At 0", writeAt(0)], ["At 0.8", writeAt(0.8)], ["At 1.5", writeAt(1.5)]] },
  { title: "Where does it look?", minutes: 2, shows: "machine", says: "Wide arcs show from which tokens a token takes something. Follow the last line: what comes after “Hans and” the second time?", enters: openHans(true), actions: [["Play again", openHans(true)]] },
  { title: "Without one part", minutes: 1, shows: "machine", says: "Vote first: what becomes of “Gre”, the beginning of Gretel, without the head that looked at it? Then press the button: all that follows is computed anew, and gray bars show the probabilities before.", enters: openHans(false), actions: [["Switch the head off, or on", ({ inside }) => inside.toggle()]] },
  { title: "To take home", minutes: 1, shows: "share", says: "The link holds the text and all its branches; the picture has the text with its probabilities.", actions: [] },
];

const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;

/** Give the page its present mode. `parts.inside` switches parts off, `parts.machine` is the picture, `parts.openExample(example, plays)` shows an example. */
export function createPresent(parts) {
  const [title, says, time, actions] = [element("h2", { tabindex: -1 }), element("p", { class: "lesson-says", "aria-live": "polite" }), element("p", { class: "lesson-time", role: "timer" }), element("div", { class: "lesson-actions" })];
  const [back, next] = [button("‹ Back", () => go(at - 1)), button("Next ›", () => go(at + 1), { class: "primary" })];
  const lesson = element("section", { id: "lesson", "aria-label": "The lesson", hidden: true }, element("div", { class: "lesson-head" }, title, time), says, element("div", { class: "lesson-actions" }, actions, back, next, button("End", leave)));
  find("main").prepend(lesson);
  let [at, since, timer] = [0, 0, null];

  function go(step) {
    if (!STEPS[step]) return;
    [at, since] = [step, Date.now()];
    const { title: name, says: text, shows, enters, actions: offered } = STEPS[at];
    title.textContent = `${at + 1} of ${STEPS.length}: ${name}`;
    says.textContent = text;
    actions.replaceChildren(...offered.map(([label, act]) => button(label, () => act(parts), { class: "act" })));
    [back.disabled, next.disabled] = [at === 0, at === STEPS.length - 1];
    document.documentElement.dataset.present = shows;
    enters?.(parts);
    showTime();
    title.focus({ preventScroll: true });
  }

  function showTime() {
    const left = 60 * STEPS[at].minutes - Math.floor((Date.now() - since) / 1000);
    time.textContent = left < 0 ? `${clock(-left)} over` : clock(left);
    time.classList.toggle("wrong", left < 0);
  }

  function leave() {
    clearInterval(timer);
    lesson.hidden = true;
    delete document.documentElement.dataset.present;
    $("present").focus();
  }

  $("present").addEventListener("click", () => {
    parts.machine.leave();
    parts.inside.reset();
    lesson.hidden = false;
    timer = setInterval(showTime, 250);
    go(0);
  });
  addEventListener("keydown", (event) => {
    if (lesson.hidden) return;
    if (event.key === "Escape") leave();
    const turn = { PageDown: 1, PageUp: -1 }[event.key]; // also the keys of a presenter’s remote control
    if (!turn) return;
    event.preventDefault();
    go(at + turn);
  });
}
