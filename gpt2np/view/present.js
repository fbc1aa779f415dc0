// Present mode: the lesson of the guide as steps, one thing at a time in large letters, with a timer.

import { $, button, element, find } from "./view.js";

const set = (id, value, kind) => {
  $(id).value = value;
  $(id).dispatchEvent(new Event(kind, { bubbles: true }));
};
const press = (id) => $(id).click();
const writeAt = (temperature) => () => {
  set("temperature", temperature, "input");
  press("generate");
};

/** `shows` is the one thing on the screen beside the text: machine, choices, settings or share. Together they take ten minutes. */
export const STEPS = [
  { title: "A model guesses", minutes: 2, shows: "machine", says: "The model reads the text and gives every token it knows a probability. A draw picks one, which is added to the text.", actions: [["One token", () => press("step")], ["Write on", () => press("continue")]] },
  { title: "It could have gone differently", minutes: 2, shows: "choices", says: "Press a pale token of the text: the model was unsure. What else could have come? Vote, and press the winner.", actions: [["Write", () => press("generate")], ["Undo", () => press("undo")]] },
  { title: "How wild?", minutes: 2, shows: "settings", says: "At temperature 0 the likeliest token is always taken. At 1.5 unlikely tokens come more often. Which text is better?", actions: [["At 0", writeAt(0)], ["At 0.8", writeAt(0.8)], ["At 1.5", writeAt(1.5)]] },
  { title: "Where does it look?", minutes: 2, shows: "machine", says: "Press the button of the example first. Wide arcs show from which tokens a token takes something. What comes after “Hans and” the second time?", actions: [["Hans and Gretel", () => { set("temperature", 0.8, "input"); set("examples", 1, "change"); }]] },
  { title: "Without one part", minutes: 1, shows: "machine", says: "Switch the head off that looked at “Gre”: everything after it is computed anew. What becomes of “Gre”, the beginning of Gretel? Gray bars show the probabilities before.", actions: [["Switch it off, or on", ({ toggle }) => toggle()]] },
  { title: "To take home", minutes: 1, shows: "share", says: "The link holds the text and all its branches; the picture has the text with its probabilities.", actions: [] },
];

const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;

/** Give the page its present mode; `inside` switches parts off, `machine` is the picture. */
export function createPresent(inside, machine) {
  const [title, says, time, actions] = [element("h2", { tabindex: -1 }), element("p", { class: "lesson-says", "aria-live": "polite" }), element("p", { class: "lesson-time", role: "timer" }), element("div", { class: "lesson-actions" })];
  const [back, next] = [button("‹ Back", () => go(at - 1)), button("Next ›", () => go(at + 1), { class: "primary" })];
  const lesson = element("section", { id: "lesson", "aria-label": "The lesson", hidden: true }, element("div", { class: "lesson-head" }, title, time), says, element("div", { class: "lesson-actions" }, actions, back, next, button("End", leave)));
  find("main").prepend(lesson);
  let [at, since, timer] = [0, 0, null];

  function go(step) {
    if (!STEPS[step]) return;
    [at, since] = [step, Date.now()];
    const { title: name, says: text, shows, actions: offered } = STEPS[at];
    title.textContent = `${at + 1} of ${STEPS.length}: ${name}`;
    says.textContent = text;
    actions.replaceChildren(...offered.map(([label, act]) => button(label, () => act(inside))));
    [back.disabled, next.disabled] = [at === 0, at === STEPS.length - 1];
    document.documentElement.dataset.present = shows;
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
    machine.leave();
    inside.reset();
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
