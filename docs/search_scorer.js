// How the search ranks pages: a word of docs/reference/words.md first, then the guide, then the rest.
// Sphinx puts this file into searchtools.js; the numbers but those of `score` are Sphinx's own.
var Scorer = {
  score: ([page, , , , score]) => {
    if (page.startsWith("guide/")) return score + 6;
    if (/walkthrough|changelog|notes$|^contributing|bundled_model/.test(page)) return score - 6;
    return score + (/^(reference|tutorial|bridges)\/(?!api)/.test(page) ? 3 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
