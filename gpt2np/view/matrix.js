// A whole array as a picture: a pixel for each number, read out under the pointer or by arrow keys.

import { dataElement, element, significant } from "./view.js";

/** 99.5 % quantile of the absolute values, interpolated as by NumPy: full color. */
function colorLimit(data) {
  const sorted = Float32Array.from(data, Math.abs).sort();
  const place = 0.995 * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return low + (high - low) * (place % 1) || 1;
}

/** Return a figure of `data`, of shape [rows, columns]. `nameRow(row)` gives the nodes that name a row. */
export function createMatrix(title, { data, shape: [rows, columns] }, nameRow = () => []) {
  const limit = colorLimit(data);
  const label = `${title}; ${rows} × ${columns} numbers`;
  const canvas = element("canvas", { width: columns, height: rows, tabindex: 0, role: "img", "aria-label": label });
  canvas.style.setProperty("--rows", rows);
  const read = element("output", { class: "readout" });
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const [plus, minus] = ["--blue-rgb", "--orange-rgb"].map((name) => style.getPropertyValue(name).trim().split(" ").map(Number));
    const context = canvas.getContext("2d");
    const pixels = context.createImageData(columns, rows);
    data.forEach((value, i) => pixels.data.set([...(value < 0 ? minus : plus), Math.round(255 * Math.min(1, Math.abs(value) / limit))], 4 * i));
    context.putImageData(pixels, 0, 0);
  };
  let [row, column] = [0, 0];
  const within = (at, count) => Math.min(count - 1, Math.max(0, Math.floor(at)));
  const show = (y, x) => {
    [row, column] = [within(y, rows), within(x, columns)];
    const value = data[row * columns + column];
    read.replaceChildren(...nameRow(row), ` number ${column}: `, dataElement(value, significant(value)));
  };
  const point = ({ clientX, clientY }) => {
    const box = canvas.getBoundingClientRect();
    show((rows * (clientY - box.top)) / box.height, (columns * (clientX - box.left)) / box.width);
  };
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, point);
  canvas.addEventListener("focus", () => show(row, column));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    show(row + step[0], column + step[1]);
  });
  paint();
  return element("figure", { class: "matrix", onrepaint: paint },
    element("figcaption", {}, title, element("span", { class: "soft" }, ` ${rows} × ${columns}; full color at ±`, dataElement(limit, significant(limit)))), canvas, read);
}
