import { strongest } from "./pass.js";
import { clamp, ease, times } from "./view.js";

const CELLS = 48; // of a strip
// The hue, saturation and lightness of each head: no gray, which is for parts that are off, no
// blue, orange and green, which say what a number is.
const HEADS = [
  ...["322 58 52", "262 58 58", "188 85 33", "24 45 38", "352 65 50", "292 55 42"],
  ...["340 65 66", "246 45 46", "176 50 44", "310 45 66", "8 38 54", "276 60 74"],
];
export function headColor(head, isDark) {
  const [hue, saturation, lightness] = HEADS[head % HEADS.length].split(" ").map(Number);
  return `hsl(${hue} ${saturation}% ${lightness + (isDark ? (75 - lightness) * 0.8 : 0)}%)`;
}
const LEAST = 0.03; // a smaller weight gets no arc

/** The moments of a pass: the embedding, attention and MLP of each block, the answer, the draw. */
export const phasesOf = ({ n_layer }, isDrawn) => [
  { kind: "embed" },
  ...times(n_layer, (layer) => [
    { kind: "attention", layer },
    { kind: "mlp", layer },
  ]).flat(),
  { kind: "answer" },
  ...(isDrawn ? [{ kind: "draw" }] : []),
];

/** A number's color, red to alpha: the sign gives the hue, the size beside `limit` the strength. */
export const colorOf = (value, limit, colors) => [
  ...(value < 0 ? colors.minus : colors.plus),
  Math.round(255 * Math.sqrt(clamp(Math.abs(value) / limit))),
];
const mix = (a, b, f) => a + (b - a) * f;

/** All strips of a pass as one bitmap, a row of pixels each; `at(line, name, layer)` is its row. */
export function paintStrips(pass, colors) {
  const perLine = 3 + 4 * pass.n_layer;
  const names = { wte: 0, wpe: 1, resid: 2, attention: 3, middle: 4, mlp: 5 };
  const at = (line, name, k = 0) =>
    line * perLine + (name === "resid" ? (k ? 2 + 4 * k : 2) : names[name] + 4 * k);
  const canvas = document.createElement("canvas");
  canvas.width = Math.min(CELLS, pass.n_embd);
  canvas.height = pass.count * perLine;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  const paint = (index, vector, limit = pass.limit) =>
    strongest(vector, CELLS).forEach((value, cell) =>
      pixels.data.set(colorOf(value, limit, colors), 4 * (index * canvas.width + cell)),
    );
  for (let line = 0; line < pass.count; line++) {
    paint(at(line, "wte"), pass.wte(line), pass.embeddingLimit);
    paint(at(line, "wpe"), pass.wpe(line), pass.embeddingLimit);
    paint(at(line, "resid"), pass.resid(0, line), pass.embeddingLimit);
    for (let k = 1; k <= pass.n_layer; k++) paint(at(line, "resid", k), pass.resid(k, line));
    for (let layer = 0; layer < pass.n_layer; layer++) {
      paint(at(line, "attention", layer), pass.attention(layer, line));
      paint(at(line, "middle", layer), pass.middle(layer, line));
      paint(at(line, "mlp", layer), pass.mlp(layer, line));
    }
  }
  context.putImageData(pixels, 0, 0);
  return { canvas, at, width: canvas.width };
}

/** Where everything is, in CSS pixels: lines of at least `least`, up to the line `bottom`. */
export function layOut(pass, width, height, bottom, least) {
  const rows = Math.min(pass.count, Math.max(2, Math.floor(height / least)));
  const hidden = Math.max(rows, Math.min(bottom, pass.count)) - rows; // lines above
  const hasEarlier = pass.first + hidden > 0;
  const pitch = height / (rows + (hasEarlier ? 1 : 0));
  const start = Math.min(56, width * 0.09);
  const block = (width - start) / pass.n_layer;
  const strip = Math.max(6, Math.min(48, block * 0.42));
  return {
    ...{ width, height, rows, hidden, hasEarlier, pitch, block, strip, start },
    swing: Math.min(pitch, 64), // how far a part may lie from its row
    y: (line) => (line - hidden + 0.5 + (hasEarlier ? 1 : 0)) * pitch,
    /** The line at a height, or null in the row of the tokens before. */
    lineAt(y) {
      const line = Math.floor(y / pitch) + hidden - (hasEarlier ? 1 : 0);
      return line < hidden || line >= hidden + rows ? null : line;
    },
    left: (layer) => start + layer * block, // of a block
    stop: (k) => (k ? start + k * block - strip / 2 - 2 : start / 2), // the place of a strip
    thickness: Math.min(13, pitch * 0.5),
  };
}

/** @type {(from: number[], to: number[], f: number) => [number, number]} */
export const between = ([ax, ay], [bx, by], f) => [mix(ax, bx, f), mix(ay, by, f)];

/** Draw a Bézier curve of four points up to `f`, from 0 to 1; return the point where it ends. */
function flow(context, points, f) {
  const [a, b, c] = [0, 1, 2].map((i) => between(points[i], points[i + 1], f));
  const [d, e] = [between(a, b, f), between(b, c, f)];
  const end = between(d, e, f);
  context.beginPath();
  context.moveTo(points[0][0], points[0][1]);
  context.bezierCurveTo(...a, ...d, ...end);
  context.stroke();
  return end;
}

const bend = (x0, y0, x1, y1) => {
  const c = mix(x0, x1, 0.55);
  return [
    [x0, y0],
    [c, y0],
    [c, y1],
    [x1, y1],
  ];
};

/** The arcs of a head at a line: the part's key, the weight, and the points of the curve. */
export function arcsOf(pass, place, layer, head, line) {
  const reach = place.block * 0.34;
  const x = place.left(layer) + 2 + (head / pass.n_head) * reach * 0.4;
  const y = place.y(line);
  const weights = pass.weights(layer, head, line);
  const arcs = [];
  let earlier = 1;
  for (let key = place.hidden; key <= line; key++) {
    earlier -= weights[key];
    const top = y - place.swing * 0.4; // of the loop of a token that looks at itself
    const loop = [
      [x, y],
      [x - reach * 0.1, top],
      [x + reach * 0.8, top],
      [x + reach * 0.7, y],
    ];
    const points = key === line ? loop : bend(x, place.y(key), x + reach, y);
    arcs.push({ weight: weights[key], key, points });
  }
  if (place.hasEarlier)
    arcs.push({ weight: earlier, key: null, points: bend(x, place.pitch / 2, x + reach, y) });
  return arcs
    .filter(({ weight }) => weight >= LEAST)
    .map((arc) => ({ ...arc, part: `${layer},${head}` }));
}

/** The dots of a line's strongest neurons, and of those that are off. */
export function neuronsOf(pass, place, view, layer, line) {
  const prefix = `${layer},n`;
  const off = [...view.off].filter((key) => key.startsWith(prefix));
  const silent = off.map((key) => ({ neuron: Number(key.slice(prefix.length)), activation: 0 }));
  const active = pass.neurons(layer, line).filter(({ neuron }) => !off.includes(prefix + neuron));
  const x = place.left(layer) + place.block * 0.47;
  return [...active, ...silent].map(({ neuron, activation }, i) => {
    const angle = (i - 2) * 0.55;
    const size = Math.sqrt(Math.abs(activation) / pass.largestActivation);
    const isOff = i >= active.length || view.off.has(`${layer},mlp`);
    return {
      ...{ neuron, activation, isOff, part: prefix + neuron },
      x: x + Math.cos(angle) * place.block * 0.06,
      y: place.y(line) + Math.sin(angle) * place.swing * 0.36,
      radius: (isOff ? 0.5 : size) * Math.min(6, place.block * 0.1, place.pitch * 0.24),
    };
  });
}

/** Draw the pass at `moment`, from 0 to the number of phases. */
export function drawStage(context, pass, strips, place, colors, moment, view) {
  const { width, height, strip, thickness } = place;
  const layers = pass.n_layer;
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  const lines = times(place.rows, (i) => i + place.hidden);
  const drawStrip = (line, name, layer, x, y, size = 1, opacity = 1) => {
    context.globalAlpha = opacity;
    const [w, h] = [strip * size, thickness * size];
    const box = /** @type {const} */ ([x - w / 2, y - h / 2, w, h]);
    context.fillStyle = colors.paper;
    context.fillRect(...box);
    context.drawImage(strips.canvas, 0, strips.at(line, name, layer), strips.width, 1, ...box);
    context.strokeStyle = colors.rule;
    context.lineWidth = 1;
    context.strokeRect(...box);
    context.globalAlpha = 1;
  };
  // The rows that the sentence is not about are pale.
  const pale = view.off.size ? 1 : clamp(moment - 1 - (view.isGuided ? 0 : 2 * layers));
  const opacityOf = (line, plain) =>
    [view.line, view.named?.key, view.named?.before].includes(line) ? 1 : plain * (1 - 0.65 * pale);
  // How far a vector has come: in block `layer`, 0 … 1 through attention and MLP.
  const through = clamp((moment - 1) / (2 * layers)) * layers;
  const layer = Math.min(layers - 1, Math.floor(through));
  const inside = through - layer;
  const traveler =
    moment < 1 ? place.stop(0) : mix(place.stop(layer), place.stop(layer + 1), ease(inside));

  const drawLine = (line, from, to, color, width, opacity) => {
    Object.assign(context, { strokeStyle: color, lineWidth: width, globalAlpha: opacity });
    context.beginPath();
    context.moveTo(from, place.y(line));
    context.lineTo(to, place.y(line));
    context.stroke();
    context.globalAlpha = 1;
  };
  for (const line of lines) {
    drawLine(line, place.stop(0), place.stop(layers), colors.rule, 1, 1);
    drawLine(line, 0, traveler, colors.soft, line === view.line ? 2 : 1, opacityOf(line, 0.5));
  }
  if (place.hasEarlier) drawLine(place.hidden - 1, 0, place.stop(layers), colors.rule, 1, 1);
  for (let each = 0; each < layers; each++) {
    const f = moment - 1 - 2 * each;
    if (f > 0) drawAttention(each, clamp(f), f < 2);
    if (f > 1 && !view.isBare) drawNeurons(each, clamp(f - 1), f < 2);
  }
  for (const line of lines) drawVectors(line);

  function drawVectors(line) {
    const y = place.y(line);
    const opacity = opacityOf(line, 0.75);
    if (!moment) return;
    if (moment < 1) {
      const f = ease(moment * 1.25);
      drawStrip(line, "wte", 0, place.stop(0), y - (1 - f) * place.swing * 0.24, 0.9, 1 - f * f);
      drawStrip(line, "wpe", 0, place.stop(0), y + (1 - f) * place.swing * 0.24, 0.9, 1 - f * f);
      if (f > 0.6) drawStrip(line, "resid", 0, place.stop(0), y, 1, (f - 0.6) / 0.4);
      return;
    }
    for (let k = 0; k <= layers && moment >= 1 + 2 * k; k++)
      drawStrip(line, "resid", k, place.stop(k), y, 1, opacity);
    if (moment >= 1 + 2 * layers) return;
    const half = inside < 0.5 ? "attention" : "mlp";
    const f = (inside * 2) % 1;
    drawStrip(line, half === "mlp" ? "middle" : "resid", layer, traveler, y, 1.1, opacity);
    if (f > 0.45 && (line === view.line || !view.isGuided)) {
      const g = ease((f - 0.45) / 0.55);
      drawStrip(
        line,
        half,
        layer,
        traveler + 2,
        y + (half === "mlp" ? 1 : -1) * (1 - g) * place.swing * 0.55,
        1,
        (1 - g * g) * opacity,
      );
    }
  }

  function drawAttention(each, f, isNow) {
    for (let head = 0; head < pass.n_head; head++) {
      const isOff = view.off.has(`${each},${head}`);
      context.strokeStyle = context.fillStyle = isOff
        ? colors.soft
        : headColor(head, colors.isDark);
      context.setLineDash(isOff ? [6, 4] : []);
      context.lineCap = isOff ? "butt" : "round";
      for (const line of lines) {
        if (line !== view.line && !isNow) continue; // what is over stays for one line only
        for (const arc of arcsOf(pass, place, each, head, line))
          draw(arc, line === view.line, named(arc), isOff);
      }
    }
    context.globalAlpha = 1;
    context.lineCap = "butt";
    context.setLineDash([]);

    function named({ part, key }) {
      if (!view.named?.part.startsWith(`${each},`)) return null;
      const to = view.named.key < place.hidden ? null : view.named.key;
      return view.named.part === part && to === key;
    }

    function draw({ weight, points }, isLooked, isNamed, isOff) {
      if (view.isBare && !isNamed) return;
      const pale = isNow && !view.isGuided ? 0.04 + 0.1 * weight : 0.02;
      const plain = (0.35 + 0.6 * weight) * (isNow ? 1 : view.isGuided ? 0.25 : 0.35);
      const own = isOff ? 0.9 : isNamed === null ? plain : isNamed ? 1 : 0.15 + 0.2 * weight;
      context.globalAlpha = Math.min(1, (isLooked ? own : pale) * (colors.isDark ? 1.4 : 1));
      const width = weight * Math.min(9, place.pitch * 0.34);
      context.lineWidth = Math.max(isLooked && (isNamed || isOff) ? 5 : 0.5, width);
      const [x, y] = flow(context, points, isNow ? ease(f * 1.3) : 1);
      if (!isNow || !isLooked) return;
      context.globalAlpha = 0.9;
      context.beginPath();
      context.arc(x, y, 1.5 + 2.5 * Math.sqrt(weight), 0, 7);
      context.fill();
    }
  }

  function drawNeurons(each, f, isNow) {
    const flash = isNow ? Math.sin(2.2 * f) : 0.7;
    for (const line of lines) {
      if (line !== view.line && (!isNow || view.isGuided)) continue;
      for (const dot of neuronsOf(pass, place, view, each, line)) {
        context.globalAlpha = opacityOf(line, 0.5) * (0.25 + 0.75 * flash);
        context.fillStyle = dot.isOff ? colors.soft : colors.ink;
        context.beginPath();
        context.arc(dot.x, dot.y, Math.max(0.6, (0.6 + 0.4 * flash) * dot.radius), 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }
}
