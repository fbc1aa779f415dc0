// "Teach it your page": the model learns a page before the class's eyes, and forgets it again. The
// server keeps the taught model as long as the connection of the request is open.

import { ConnectionLost, ServerError, post, postJson, readEvents } from "./api.js";
import { button, counted, element, find, formatNumber } from "./view.js";

const LEAST_RUN = 5; // words in a row that chance hardly gives
const [WIDTH, HEIGHT] = [320, 100];

const wordsOf = (text) =>
  [...text.matchAll(/[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu)].map((found) => ({
    word: found[0].toLowerCase(),
    start: found.index,
    end: found.index + found[0].length,
  }));

/** The longest run of words of `text` that stands in `page`: their number, and where they are. */
export function longestRun(text, page) {
  const [own, others] = [wordsOf(text), wordsOf(page)];
  let best = { count: 0, start: 0, end: 0 };
  let before = [0, ...others.map(() => 0)]; // lengths of the runs that end at each word of the page
  for (const [i, { word, end }] of own.entries()) {
    const runs = [0, ...others.map((other, k) => (other.word === word ? before[k] + 1 : 0))];
    const count = Math.max(...runs);
    if (count > best.count) best = { count, start: own[i - count + 1].start, end };
    before = runs;
  }
  return best;
}

/** Say what the texts before and after show about memory. */
function judge(before, after) {
  const was = before.count >= LEAST_RUN ? ` Before, it repeated ${before.count}.` : "";
  const words = `${counted(after.count, "word")} of your page`;
  return after.count >= LEAST_RUN
    ? `It repeats ${words}.${was} It has learned the page by heart, not what it means.`
    : `It repeats no more than ${words} in a row: this text is not learned by heart.`;
}

/** A falling curve of the losses so far, of `nSteps` steps. */
function drawLosses(curve, losses, nSteps) {
  const most = Math.max(...losses);
  const at = (loss, i) => [(WIDTH * i) / nSteps, HEIGHT * (1 - loss / most)];
  const points = losses.map((loss, i) =>
    at(loss, i)
      .map((x) => x.toFixed(1))
      .join(","),
  );
  curve.setAttribute("points", points.join(" "));
}

function createCurve() {
  const make = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const viewBox = `-2 -4 ${WIDTH + 4} ${HEIGHT + 8}`;
  const picture = make("svg", { viewBox, preserveAspectRatio: "none", "aria-hidden": true });
  const axis = make("path", { class: "axis", d: `M0 0V${HEIGHT}H${WIDTH}` });
  const curve = make("polyline", { points: "" });
  picture.append(axis, curve);
  return { picture, curve };
}

/** Build the form in `root`; return the line above the picture, and what ends the lesson. */
export function createTeach(root, { model, request, onModel, onWatch }) {
  let controller = new AbortController(); // ends the connection
  let lesson = Promise.resolve(); // from the press of Teach until the page is forgotten
  let [base, name] = ["", ""]; // of the model that is taught, and of the taught model
  const text = element("textarea", {
    ...{
      id: "teach-text",
      rows: 7,
      dir: "auto",
      required: true,
      spellcheck: "false",
      maxlength: 20_000,
    },
    ...{ "aria-label": "The page to learn" },
    placeholder: "Paste a page here, about 300 words.",
  });
  const run = element("button", { class: "primary" }, "Teach");
  const stop = button("Stop and keep", stopLearning, { hidden: true });
  const watch = button("Watch it write ▷", onWatch, { class: "primary", hidden: true });
  const forget = button("Forget", () => forgetAndFocus(text), { hidden: true });
  const says = element("p", { class: "teach-says", role: "status" });
  const { picture, curve } = createCurve();
  const loss = element("figcaption");
  const figure = element("figure", { hidden: true }, picture, loss);
  const texts = element("dl", {});
  const form = element("form", { class: "teach" }, text);
  form.append(element("div", { class: "buttons" }, run, stop, watch, forget));
  const lessonElement = element("div", { class: "lesson" }, form);
  lessonElement.append(element("div", {}, says, figure, texts));
  root.append(lessonElement);
  const noticeSays = element("span");
  const noticeForget = button("Forget", () => forgetAndFocus(find("#generate")));
  const notice = element("p", { class: "taught", hidden: true }, noticeSays, noticeForget);

  function say(words, isWrong = false) {
    says.textContent = words;
    says.classList.toggle("wrong", isWrong);
    if (root.dataset.phase === "learning") noticeSays.textContent = `Teaching: ${words}`;
  }

  /** Show the buttons of a phase: "" before a lesson, "learning", or "taught". */
  function enter(phase) {
    root.dataset.phase = phase;
    run.disabled = phase === "learning";
    Object.assign(stop, { hidden: phase !== "learning", disabled: false });
    notice.hidden = !phase;
    watch.hidden = forget.hidden = noticeForget.hidden = phase !== "taught";
    if (phase === "taught") noticeSays.textContent = "This model has learned your page.";
    run.classList.toggle("primary", phase !== "taught");
  }

  async function stopLearning() {
    if (!name) return controller.abort();
    stop.disabled = true;
    say("It stops after this time.");
    await post("api/teach/stop", { model: name });
  }

  async function forgetAndFocus(next) {
    await onModel(base); // before the server forgets the model that the page asks for
    controller.abort();
    await lesson;
    next.focus();
  }

  /** Whether an element has the focus, or had it until it was disabled. */
  const hasFocus = (each) => [each, document.body].includes(document.activeElement);

  /** Write the text with a model, and show it with what it repeats of the page marked. */
  async function write(title, name, body, page) {
    const { choices } = await postJson("v1/completions", { ...body, model: name });
    const written = choices[0].text;
    const found = longestRun(written, page);
    const { start, end } = found.count >= LEAST_RUN ? found : { start: 0, end: 0 };
    const parts = [written.slice(0, start), written.slice(start, end), written.slice(end)];
    const shown = element("dd", { dir: "auto" }, element("span", { class: "soft" }, body.prompt));
    shown.append(parts[0], ...(end ? [element("mark", {}, parts[1])] : []), parts[2]);
    texts.append(element("div", {}, element("dt", {}, title), shown));
    return found;
  }

  function showLoss(losses, { step, loss: now }, { n_steps, n_tokens, n_left_out }) {
    losses[step] = now; // a stop repeats the last one
    drawLosses(curve, losses, n_steps);
    figure.hidden = false;
    const [first, last] = [losses[0], now].map((x) => formatNumber(x));
    const means = "It says how much the page’s next token surprises the model.";
    loss.textContent = `Loss: ${first} at first, ${last} now. ${means}`;
    const what = n_left_out
      ? `the first ${n_tokens} tokens of your page`
      : `your ${n_tokens} tokens`;
    if (!stop.disabled) say(`It reads ${what} again and again: ${step} of ${n_steps} times.`);
  }

  /** Teach the page; ends when the model has forgotten it. */
  async function teach(page, signal) {
    const [body, losses] = [request(), /** @type {number[]} */ ([])];
    base = model();
    const before = await write("Before", base, body, page);
    let [after, lastStep, facts] = [before, 0, /** @type {any} */ ({})];
    try {
      for await (const each of readEvents(post("api/teach", { model: base, text: page }, signal))) {
        if (each.model) [name, facts] = [each.model, each];
        if (each.loss !== undefined) {
          lastStep = each.step;
          showLoss(losses, each, facts);
        }
        if (each.is_ready) after = await write(`After ${each.step} times`, name, body, page);
        if (each.is_done) {
          const isEarly = lastStep < facts.n_steps;
          const early = isEarly ? `It stopped after ${lastStep} of ${facts.n_steps} times. ` : "";
          say(early + judge(before, after));
          const isWaiting = hasFocus(stop);
          enter("taught");
          if (isWaiting) watch.focus();
          await onModel(name);
        }
      }
    } finally {
      if (model() === name) await onModel(base);
    }
  }

  /** Teach the page of the form, and say how it ends. */
  async function learn() {
    controller = new AbortController();
    name = "";
    enter("learning");
    figure.hidden = true;
    texts.replaceChildren();
    say("The model writes a text before it learns.");
    stop.focus();
    root.scrollIntoView({ block: "start" });
    try {
      await teach(text.value, controller.signal);
    } catch (error) {
      if (error.name === "AbortError") {
        const isNew = name === "";
        return say(
          isNew ? "Nothing was learned." : "It has forgotten the page: the old model is back.",
        );
      }
      texts.replaceChildren();
      figure.hidden = true;
      if (error instanceof ConnectionLost)
        say("The connection is lost, so the page is forgotten.", true);
      else if (error instanceof ServerError) say(error.message, true);
      else throw error;
    } finally {
      const isWaiting = hasFocus(stop);
      enter("");
      if (isWaiting) text.focus();
    }
  }

  addEventListener("beforeunload", (event) => {
    if (root.dataset.phase) event.preventDefault(); // what was learned goes with the page
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    controller.abort();
    await lesson;
    lesson = learn();
    await lesson;
  });
  enter("");
  return { notice, forget: () => controller.abort() };
}
