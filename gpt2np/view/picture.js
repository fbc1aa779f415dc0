import { serverSource } from "./api.js";
import { createDraw } from "./draw.js";
import { createGuide } from "./guide.js";
import { createMachine } from "./machine.js";
import { toggle } from "./parts.js";
import { findPart } from "./press.js";
import { usePrompt } from "./prompt.js";
import { changes, isTreeOfPrompt, state } from "./state.js";
import { choose } from "./story.js";
import { $ } from "./view.js";

/** Continue with a token of the answer that the picture shows. */
async function pick(id) {
  const { ids, next } = machine.pass;
  if (state.running || (!isTreeOfPrompt() && !(await usePrompt()))) return;
  await choose(ids.length, { id, logprob: next.find((row) => row.id === id)?.logprob });
}

export const machine = createMachine($("machine"), {
  onPick: pick,
  onSwitch: (part) => toggle(part),
  findPart,
  createGuide: (host) => createGuide(host, () => $("generate").focus({ preventScroll: true })),
  draw: createDraw(),
  source: serverSource({ model: () => machine.model ?? state.model.id, changes: () => changes() }),
});
