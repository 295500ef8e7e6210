// Weights of the payload: decoding, planes of one head, and pyramids for drawing.

import { STEPS } from "./colour.js";

const decoded = new WeakMap();

/** Bytes of a base64 text. */
export function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), made = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) made[i] = binary.charCodeAt(i);
  return made;
}

/** Decode the weights of a map once: { steps } of all cells, or { k, columns, steps } of the largest of each row. */
function decode(map) {
  if (!decoded.has(map)) {
    const { encoding, k, columns, steps } = map.weights;
    const uint16 = text => new Uint16Array(bytes(text).buffer);
    decoded.set(map, encoding === "dense" ? { steps: uint16(steps) } : { k, columns: uint16(columns), steps: uint16(steps) });
    Object.assign(map.weights, { steps: null, columns: null }); // the text is not needed any more
  }
  return decoded.get(map);
}

/** Indices of the tokens that are shown. */
function kept(tokens, special, hide) {
  const names = new Set(hide ? special : []);
  const indices = [...tokens.keys()].filter(i => !names.has(tokens[i]));
  return indices.length ? indices : [...tokens.keys()];
}

const recent = new Map(); // planes last used
const MOST_CELLS = 2 ** 23; // of them together, unless there are only two
let examples = new WeakMap(), count = 0;
const idOf = example => examples.get(example) ?? (examples.set(example, ++count), count);

/**
 * The weights of one head or of the average: { rows, columns, height, width, values, peak, at(row, column), key }.
 * `rows` and `columns` are the indices of the shown tokens, `values` their weights in steps (row by row), and
 * `at` takes indices of tokens and returns { value, stored }: the weight, or an upper bound of one that is not stored.
 */
export function planeOf(example, map, head, special = "shown") {
  const key = [idOf(example), example.maps.indexOf(map), head, special].join();
  let plane = recent.get(key);
  recent.delete(key);
  plane ??= build(example, map, head, special, key);
  recent.set(key, plane);
  let cells = 0;
  for (const each of recent.values()) cells += each.values.length;
  for (const [oldest, { values }] of recent) {
    if (cells <= MOST_CELLS || recent.size <= 2) break;
    recent.delete(oldest);
    cells -= values.length;
  }
  return plane;
}

function build(example, map, head, special, key) {
  const rowTokens = example.texts[map.rows], columnTokens = example.texts[map.columns], hide = special !== "shown";
  const rows = kept(rowTokens, example.special, hide), columns = kept(columnTokens, example.special, hide);
  const height = rows.length, width = columns.length;
  // Integers for large maps, which need a quarter of the memory during the computation of the average.
  const values = new (height * width > 2 ** 22 ? Uint16Array : Float32Array)(height * width);
  const place = new Int32Array(columnTokens.length).fill(-1);
  columns.forEach((column, j) => place[column] = j);
  const fill = map.weights.encoding === "dense" ? fillDense : fillSparse;
  const bound = fill(values, map, head, { rows, columns, place, renormalize: special === "renormalized" }, columnTokens.length);
  let peak = 0;
  for (const value of values) if (value > peak) peak = value;
  const rowPlace = new Map(rows.map((row, i) => [row, i]));
  const at = (row, column) => {
    const i = rowPlace.get(row), value = values[i * width + place[column]] / STEPS;
    return value > 0 || bound === null ? { value, stored: true } : { value: bound[i] / STEPS, stored: bound[i] === 0 };
  };
  return { rows, columns, height, width, values, peak: peak / STEPS, at, key, rowTokens, columnTokens };
}

function fillDense(values, map, head, { rows, columns, renormalize }, wide) {
  const { steps } = decode(map), size = steps.length / map.heads, width = columns.length;
  const heads = head === "average" ? [...Array(map.heads).keys()] : [head];
  rows.forEach((row, i) => {
    let sum = 0;
    for (let j = 0; j < width; j++) {
      let total = 0;
      for (const h of heads) total += steps[h * size + row * wide + columns[j]];
      values[i * width + j] = total / heads.length;
      sum += total / heads.length;
    }
    if (renormalize && sum) for (let j = 0; j < width; j++) values[i * width + j] *= STEPS / sum;
  });
  return null;
}

/** Fill in the stored weights; returns for each row an upper bound of the others: its smallest stored weight. */
function fillSparse(values, map, head, { rows, columns, place, renormalize }, wide) {
  const { k, columns: at, steps } = decode(map), size = at.length / (map.heads + 1), width = columns.length;
  const first = (head === "average" ? map.heads : head) * size, bound = new Float32Array(rows.length);
  rows.forEach((row, i) => {
    const begin = first + row * k;
    let hidden = 0;
    for (let n = begin; n < begin + k; n++)
      if (place[at[n]] < 0) hidden += steps[n];
    const factor = renormalize && hidden < STEPS ? STEPS / (STEPS - hidden) : 1;
    for (let n = begin; n < begin + k; n++) {
      const j = place[at[n]];
      if (steps[n] && j >= 0) values[i * width + j] = Math.min(STEPS, steps[n] * factor);
    }
    bound[i] = k < wide ? steps[begin + k - 1] * factor : 0; // sorted: the largest first
  });
  return bound;
}

const pyramids = new WeakMap();

/** The weights at a level of detail: each value is the largest of 2^level x 2^level weights. */
export function level(plane, number) {
  if (!pyramids.has(plane)) pyramids.set(plane, [plane]);
  const levels = pyramids.get(plane);
  while (levels.length <= number) levels.push(halved(levels.at(-1)));
  return levels[number];
}

function halved({ height, width, values }) {
  const down = Math.ceil(height / 2), across = Math.ceil(width / 2), made = new values.constructor(down * across);
  for (let i = 0; i < height; i++)
    for (let j = 0, to = (i >> 1) * across; j < width; j++) {
      const value = values[i * width + j], at = to + (j >> 1);
      if (value > made[at]) made[at] = value;
    }
  return { height: down, width: across, values: made };
}

/** A small picture of a head: { height, width, values } in steps, the overview of the payload or the weights. */
export function thumbnail(example, map, head) {
  if (!map.overview) return planeOf(example, map, head);
  const { height, width, values } = map.overview, all = decodedOverview(map, values);
  const index = head === "average" ? map.heads : head, size = height * width;
  return { height, width, values: all.subarray(index * size, (index + 1) * size) };
}

function decodedOverview(map, values) {
  if (!decoded.has(map.overview)) decoded.set(map.overview, new Uint16Array(bytes(values).buffer));
  return decoded.get(map.overview);
}

/** Paint values in steps onto a canvas, one pixel per value; `part` is { top, left, height, width } of the values. */
export function paint({ height, width, values }, scale, part = { top: 0, left: 0, height, width }) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: part.width, height: part.height });
  const context = canvas.getContext("2d"), image = context.createImageData(part.width, part.height);
  const out = new Uint32Array(image.data.buffer), lut = scale.lut();
  for (let i = 0, to = 0; i < part.height; i++)
    for (let j = 0, from = (part.top + i) * width + part.left; j < part.width; j++)
      out[to++] = lut[values[from++] + 0.5 | 0];
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Largest weight of a head of a map, or of all heads of all maps of an example. */
export const peakOf = (map, head) => map.statistics.peak[head === "average" ? map.heads : head];
export const sharedPeak = example => Math.max(0, ...example.maps.map(map => Math.max(...map.statistics.peak)));

/** The colour scale that the state asks for, of a head of a map. */
export function scaleOf(colours, example, map, head, state) {
  const peak = state.special === "renormalized" ? 1 : state.scale === "own" ? peakOf(map, head) : sharedPeak(example);
  const curve = state.curve || (example.texts[map.columns].length > 64 ? "root" : "linear");
  return colours(peak, curve);
}
