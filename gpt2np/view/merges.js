// The pieces of a text with their tokens, and the merges that make each token.

import { chipOf, table, tableRow } from "./numbers.js";
import { counted, chipElement, decodeToken, element, withSpaces } from "./view.js";

function* mergeNodes(pass) {
  const pieces = pass.described.pieces ?? [];
  if (!pieces.length) {
    yield element(
      "p",
      { class: "hint" },
      "These tokens were given as ids, so no merges made them.",
    );
  }
  for (const { bytes, ids, steps } of pieces) {
    const name = chipElement(decodeToken(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))));
    const tokens = ids.flatMap((id) => [" ", chipOf(pass, id), ` ${id}`]);
    const count = Math.max(0, steps.length - 1);
    const summary = [
      name,
      ` ${count ? counted(count, "merge") : "nothing is merged"} →`,
      ...tokens,
    ];
    yield count
      ? element(
          "details",
          {},
          element("summary", {}, ...summary),
          mergeTable(steps, name.textContent),
        )
      : element("p", { class: "piece" }, ...summary);
  }
}

function mergeTable(steps, name) {
  const isJoined = (step, i) =>
    step.chosen !== null && (i === step.chosen || i === step.chosen + 1);
  const spelled = (step) =>
    step.tokens.flatMap((token, i) => [
      element("bdi", { class: isJoined(step, i) ? "token joined" : "token" }, token),
      i < step.ranks.length
        ? element(
            "span",
            { class: i === step.chosen ? "rank joined" : "rank" },
            step.ranks[i] ?? "–",
          )
        : "",
    ]);
  const head = ["step", "tokens, and the ranks of the pairs"];
  const rows = steps.map((step, i) => tableRow({}, String(i), spelled(step)));
  return table(`The merges of the piece ${withSpaces(name)}`, head, rows, "merges");
}

/** The section of the merges; see `SECTIONS` in numbers.js. */
export const MERGES = { id: "merges", follows: [], draw: (pass) => [...mergeNodes(pass)] };
