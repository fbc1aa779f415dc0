// "Teach it your page": the model learns a page before the class's eyes, and forgets it again. The
// server keeps the taught model as long as the connection of the request is open.

import { ConnectionLost, ServerError, post, postJson, readEvents } from "./api.js";
import { button, counted, element, formatNumber } from "./view.js";

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
  return after.count >= LEAST_RUN
    ? `It repeats ${counted(after.count, "word")} of your page.${was} It has learned the page by heart, not what it means.`
    : `It repeats no more than ${counted(after.count, "word")} of your page in a row: this text is not learned by heart.`;
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
  const picture = make("svg", { viewBox: `-2 -4 ${WIDTH + 4} ${HEIGHT + 8}`, "aria-hidden": true });
  const axis = make("path", { class: "axis", d: `M0 0V${HEIGHT}H${WIDTH}` });
  const curve = make("polyline", { points: "" });
  picture.append(axis, curve);
  return { picture, curve };
}

/**
 * Build the form in `root`. `model()` is the name of the model to teach, `request()` the fields of a
 * completion that is written before and after. `onModel(name)` is called with the taught model, and
 * with the first one when the page is forgotten.
 */
export function createTeach(root, { model, request, onModel }) {
  let controller = /** @type {AbortController | null} */ (null); // ends the connection
  const text = element("textarea", {
    ...{ id: "teach-text", rows: 7, dir: "auto", spellcheck: "false" },
    "aria-label": "The page to learn",
    placeholder: "Paste a page here: up to 512 tokens, about 300 words.",
  });
  const run = element("button", { class: "primary" }, "Teach");
  const forget = button("Forget", () => controller?.abort(), { hidden: true });
  const says = element("p", { class: "teach-says", role: "status" });
  const { picture, curve } = createCurve();
  const loss = element("figcaption");
  const figure = element("figure", { hidden: true }, picture, loss);
  const texts = element("dl", {});
  const form = element("form", { class: "teach" }, text);
  form.append(element("div", { class: "buttons" }, run, forget));
  root.append(form, says, figure, texts);

  function say(words, isWrong = false) {
    says.textContent = words;
    says.classList.toggle("wrong", isWrong);
  }

  /** Write the text with a model, and show it with what it repeats of the page marked. */
  async function write(title, name, body, page) {
    const { choices } = await postJson("v1/completions", { ...body, model: name });
    const written = choices[0].text;
    const found = longestRun(written, page);
    const { start, end } = found.count >= LEAST_RUN ? found : { start: 0, end: 0 };
    const parts = [written.slice(0, start), written.slice(start, end), written.slice(end)];
    texts.append(
      element("dt", {}, title),
      element(
        "dd",
        { dir: "auto" },
        element("span", { class: "soft" }, body.prompt),
        ...[parts[0], ...(end ? [element("mark", {}, parts[1])] : []), parts[2]],
      ),
    );
    return found;
  }

  /** Teach the page; ends when the model has forgotten it. */
  async function teach(page, signal) {
    const [base, body, losses] = [model(), request(), /** @type {number[]} */ ([])];
    let [name, nSteps, nTokens] = ["", 0, 0];
    const before = await write("Before", base, body, page);
    let after = before;
    try {
      for await (const each of readEvents(post("api/teach", { model: base, text: page }, signal))) {
        if (each.model) [name, nSteps, nTokens] = [each.model, each.n_steps, each.n_tokens];
        if (each.loss !== undefined) {
          losses.push(each.loss);
          drawLosses(curve, losses, nSteps);
          figure.hidden = false;
          const [first, last] = [losses[0], each.loss].map((x) => formatNumber(x));
          loss.textContent = `Loss: ${first} at first, ${last} now. It says how much the page’s next token surprises the model.`;
          say(`It reads your ${nTokens} tokens again and again: ${each.step} of ${nSteps} times.`);
        }
        if (each.is_ready) after = await write(`After ${each.step} times`, name, body, page);
        if (each.is_done) {
          say(judge(before, after));
          forget.textContent = "Forget";
          await onModel(name);
        }
      }
    } finally {
      if (!forget.hidden && forget.textContent === "Forget") await onModel(base);
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    controller = new AbortController();
    Object.assign(run, { disabled: true });
    Object.assign(forget, { hidden: false, textContent: "Stop" });
    figure.hidden = true;
    texts.replaceChildren();
    say("The model writes a text before it learns.");
    try {
      await teach(text.value, controller.signal);
    } catch (error) {
      if (error.name === "AbortError") say("It has forgotten the page: the old model is back.");
      else if (error instanceof ConnectionLost)
        say("The connection is lost, so the page is forgotten.", true);
      else if (error instanceof ServerError) say(error.message, true);
      else throw error;
    } finally {
      run.disabled = false;
      forget.hidden = true;
    }
  });
}
