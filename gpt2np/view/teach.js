// "Teach it your page": the model learns a page before the class's eyes, and forgets it again. The
// server keeps the taught model as long as the connection of the request is open.

import { ConnectionLost, ServerError, post, postJson, readEvents } from "./api.js";
import { counted, element, find, formatNumber } from "./view.js";

const LEAST_RUN = 5; // words in a row that chance hardly gives

const wordsOf = (text) =>
  [...text.matchAll(/[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu)].map((found) => ({
    word: found[0].toLowerCase(),
    start: found.index,
    end: found.index + found[0].length,
  }));

/** What `text` copies from `page`: the most words in a row, and where it copies long runs. */
export function copied(text, page) {
  const [own, others] = [wordsOf(text), wordsOf(page)];
  let runs = [0, ...others.map(() => 0)]; // lengths of the runs that end at each word of the page
  const marks = [];
  let most = 0;
  for (const [i, { word, end }] of own.entries()) {
    runs = [0, ...others.map((other, k) => (other.word === word ? runs[k] + 1 : 0))];
    const count = Math.max(...runs);
    most = Math.max(most, count);
    if (count < LEAST_RUN) continue;
    let { start } = own[i - count + 1];
    while (marks.length && marks.at(-1)[1] > start) start = Math.min(start, marks.pop()[0]);
    marks.push([start, end]);
  }
  return { count: most, marks };
}

function judge(before, after) {
  const was = before.count >= LEAST_RUN ? ` Before, it repeated ${before.count}.` : "";
  const words = `${counted(after.count, "word")} of your page`;
  return after.count >= LEAST_RUN
    ? `It repeats ${words} in a row.${was} It has learned the page by heart, not what it means.`
    : `It repeats no more than ${words} in a row: this text is not learned by heart.`;
}

const pointsOf = (losses, nSteps) =>
  losses.map((loss, i) => [(320 * i) / nSteps, 100 * (1 - loss / Math.max(...losses))]).join(" ");

/** Start the form in `root`; return what ends the lesson. */
export function createTeach(root, { model, request, onModel, onReady, onWatch, onEnd }) {
  let controller = new AbortController(); // ends the connection
  let lesson = Promise.resolve(); // from the press of Teach until the page is forgotten
  let [base, name] = ["", ""]; // of the model that is taught, and of the taught model
  const form = find("form", root);
  const [text] = form;
  const [run, stop, watch] = find(".buttons", form).children;
  const [says, figure, texts] = [".teach-says", "figure", "dl"].map((each) => find(each, root));
  const notice = find(".taught"); // the line above the picture
  const [noticeSays, forget] = notice.children;
  stop.onclick = stopLearning;
  watch.onclick = onWatch;
  forget.onclick = forgetPage;

  function say(words, isWrong = false) {
    says.textContent = words;
    says.classList.toggle("wrong", isWrong);
    if (root.dataset.phase === "learning") noticeSays.textContent = `Teaching: ${words}`;
  }

  function enter(phase) {
    root.dataset.phase = phase;
    run.disabled = phase === "learning";
    Object.assign(stop, { hidden: phase !== "learning", disabled: false });
    notice.hidden = !phase;
    watch.hidden = forget.hidden = phase !== "taught";
    if (phase === "taught") noticeSays.textContent = "This model has learned your page.";
    run.classList.toggle("primary", phase !== "taught");
  }

  async function stopLearning() {
    if (!name) return controller.abort();
    stop.disabled = true;
    say("It stops after this reading.");
    await post("api/teach/stop", { model: name });
  }

  async function forgetPage() {
    await onModel(base); // before the server forgets the model that the page asks for
    controller.abort();
    await lesson;
    find("#generate").focus();
  }

  /** Whether an element has the focus, or had it until it was disabled. */
  const hasFocus = (each) => [each, document.body].includes(document.activeElement);

  async function write(title, name, body, page) {
    const { signal } = controller;
    const { choices } = await postJson("v1/completions", { ...body, model: name }, signal);
    const written = choices[0].text;
    const found = copied(written, page);
    const shown = element("dd", { dir: "auto" }, element("span", { class: "soft" }, body.prompt));
    let at = 0;
    for (const [start, end] of found.marks) {
      const mark = element("mark", {}, written.slice(start, end));
      shown.append(written.slice(at, start), mark);
      at = end;
    }
    shown.append(written.slice(at));
    texts.append(element("div", {}, element("dt", {}, title), shown));
    return found;
  }

  function showLoss(losses, { step, loss: now }, { n_steps, n_tokens, n_left_out }) {
    losses[step] = now; // a stop repeats the last one
    find("polyline", figure).setAttribute("points", pointsOf(losses, n_steps));
    figure.hidden = false;
    const [first, last] = [losses[0], now].map((x) => formatNumber(x));
    const means = "Loss: how much each next word of the page surprises it";
    find("figcaption", figure).textContent = `${means}: ${first}, now ${last}.`;
    const what = n_left_out
      ? `the first ${n_tokens} tokens of your page`
      : `your ${n_tokens} tokens`;
    if (!stop.disabled) say(`It reads ${what} again and again: ${step} of ${n_steps} times.`);
  }

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
        if (each.is_ready) {
          after = await write(`After ${each.step} times`, name, body, page);
          await onReady(name, base, signal);
        }
        if (each.is_done) {
          stop.disabled = true;
          await onModel(name);
          signal.throwIfAborted();
          await onReady(name, base, signal);
          signal.throwIfAborted();
          const of = `${lastStep} of ${facts.n_steps} times`;
          const early = lastStep < facts.n_steps ? `It stopped after ${of}. ` : "";
          say(early + judge(before, after));
          const isWaiting = hasFocus(stop);
          enter("taught");
          if (isWaiting) watch.focus();
        }
      }
    } finally {
      if (model() === name) await onModel(base);
      else if (name && model() === base) onEnd(); // the picture is that of the lesson
    }
  }

  async function learn() {
    controller = new AbortController();
    name = "";
    enter("learning");
    figure.hidden = true;
    texts.replaceChildren();
    say("The model writes a text before it learns.");
    stop.focus();
    root.scrollIntoView({ block: "nearest" });
    try {
      await teach(text.value, controller.signal);
    } catch (error) {
      texts.replaceChildren();
      figure.hidden = true;
      if (error.name === "AbortError")
        return say(name ? "It has forgotten the page." : "Nothing was learned.");
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
    const before = lesson;
    await before;
    if (lesson !== before) return; // the button was pressed twice
    lesson = learn();
    await lesson;
  });
  enter("");
  return () => controller.abort();
}
