// Beginnings of texts for which one head of the bundled model matters. The tests check each of
// them.

export const EXAMPLES = [
  { prompt: "Once upon a", next: " time", layer: 0, head: 1, looksAt: "Once" },
  {
    prompt: "Hans and Gretel went into the wood. Hans and",
    next: " Gre",
    layer: 5,
    head: 2,
    looksAt: " Gre",
  },
  {
    prompt: "The wolf said to the fox, and the fox said to the",
    next: " fox",
    layer: 3,
    head: 2,
    looksAt: " wolf",
  },
  {
    prompt: "One day the mouse met the cat. The mouse was afraid of the",
    next: " cat",
    layer: 3,
    head: 2,
    looksAt: " cat",
  },
  {
    prompt: "the cat sat on the mat, the cat sat on the",
    next: " m",
    layer: 5,
    head: 2,
    looksAt: " m",
  },
];

export const MODEL = "bundled";
