// Weights of the payload: decoding, planes of one head at several levels of detail, and painting.

import { STEPS } from "./color.js";

const decoded = new WeakMap();

/** Bytes of a base64 text. */
export function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), values = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) values[i] = binary.charCodeAt(i);
  return values;
}

/** Decode the weights of a map once: { steps } of all cells, or { k, columns, steps } of the largest of each row. */
function decode(map) {
  if (!decoded.has(map)) {
    const { encoding, k, columns, steps } = map.weights;
    const uint16 = text => new Uint16Array(bytes(text).buffer);
    decoded.set(map,
      encoding === "dense" ? { steps: uint16(steps) } : { k, columns: uint16(columns), steps: uint16(steps) });
    Object.assign(map.weights, { steps: null, columns: null }); // the text is not needed any more
  }
  return decoded.get(map);
}

const runs = new WeakMap(); // of masks

/** The keys that each query may attend to: runs [from, to), by row; null if no cell of the map is masked. */
function allowedRuns(example, map) {
  const mask = example.masks?.[map.mask ?? -1];
  if (!mask) return null;
  if (!runs.has(mask)) {
    const rows = example.texts[map.rows].length, columns = example.texts[map.columns].length,
      packed = bytes(mask.values), each = [];
    if (mask.encoding === "runs") {
      const ends = new Uint32Array(packed.buffer);
      for (let i = 0; i < rows; i++) each.push(ends[2 * i] < ends[2 * i + 1] ? [[ends[2 * i], ends[2 * i + 1]]] : []);
    } else for (let i = 0; i < rows; i++) {
      const ranges = [], allowed = j => packed[(i * columns + j) >> 3] >> (7 - ((i * columns + j) & 7)) & 1;
      for (let j = 0; j < columns; j++)
        if (allowed(j)) {
          if (ranges.length && ranges.at(-1)[1] === j) ranges.at(-1)[1]++;
          else ranges.push([j, j + 1]);
        }
      each.push(ranges);
    }
    runs.set(mask, each);
  }
  return runs.get(mask);
}

/** Whether a query must not attend to a key. */
const maskedBy = (allowed, row, column) =>
  Boolean(allowed) && !allowed[row].some(([from, to]) => column >= from && column < to);

export const MASKED = -1; // instead of a weight in steps

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
 * The weights of one head or of the average: { rows, columns, height, width, at(row, column), read(detail, part),
 * masked(row, column) or null if no cell is masked }.
 * `rows` and `columns` are the indices of the shown tokens. `at` takes indices of tokens and returns { value, stored }:
 * the weight, or an upper bound of one that is not stored. `read` returns the weights of a part { top, left, height,
 * width } in steps, row by row, where a value is the largest of 2^detail x 2^detail weights, or MASKED if all of them
 * are masked.
 */
export function planeOf(example, map, head, special = "shown") {
  const key = [idOf(example), example.maps.indexOf(map), head, special].join();
  let plane = recent.get(key);
  recent.delete(key);
  plane ??= build(example, map, head, special, key);
  recent.set(key, plane);
  let cells = 0;
  for (const each of recent.values()) cells += each.cells;
  for (const [oldest, { cells: size }] of recent) {
    if (cells <= MOST_CELLS || recent.size <= 2) break;
    recent.delete(oldest);
    cells -= size;
  }
  return plane;
}

function build(example, map, head, special, key) {
  const rowTokens = example.texts[map.rows], columnTokens = example.texts[map.columns], hide = special !== "shown";
  const rows = kept(rowTokens, example.special, hide), columns = kept(columnTokens, example.special, hide);
  const plane = { rows, columns, height: rows.length, width: columns.length, rowTokens, columnTokens, key,
    last: Boolean(example.generation) };
  const inverse = indices => new Map(indices.map((index, i) => [index, i]));
  const rowOf = inverse(rows), columnOf = inverse(columns);
  const make = map.weights.encoding === "dense" ? densePlane : sparsePlane;
  const allowed = allowedRuns(example, map);
  const { at, read, cells } = make(map, head, plane, special === "renormalized", allowed);
  return { ...plane, read, cells, masked: allowed && ((row, column) => maskedBy(allowed, row, column)),
    at: (row, column) => at(rowOf.get(row), columnOf.get(column)) };
}

/** All weights are stored: an array of them, and arrays of half the size for drawing. */
function densePlane(map, head, { rows, columns, height, width, columnTokens }, renormalize, allowed) {
  const { steps } = decode(map), size = steps.length / map.heads, values = new Float32Array(height * width);
  const heads = head === "average" ? [...Array(map.heads).keys()] : [head], wide = columnTokens.length;
  rows.forEach((row, i) => {
    let sum = 0;
    for (let j = 0; j < width; j++) {
      let total = 0;
      for (const h of heads) total += steps[h * size + row * wide + columns[j]];
      values[i * width + j] = total / heads.length;
      sum += total / heads.length;
    }
    if (renormalize && sum) for (let j = 0; j < width; j++) values[i * width + j] *= STEPS / sum;
    if (allowed) for (let j = 0; j < width; j++)
      if (!values[i * width + j] && maskedBy(allowed, row, columns[j])) values[i * width + j] = MASKED;
  });
  const levels = [{ height, width, values }];
  const read = (detail, part) => {
    while (levels.length <= detail) levels.push(halved(levels.at(-1)));
    const level = levels[detail], block = new Float32Array(part.height * part.width);
    for (let i = 0; i < part.height; i++) {
      const from = (part.top + i) * level.width + part.left;
      block.set(level.values.subarray(from, from + part.width), i * part.width);
    }
    return block;
  };
  return { read, cells: values.length,
    at: (i, j) => ({ value: Math.max(0, values[i * width + j]) / STEPS, stored: true }) };
}

function halved({ height, width, values }) {
  const down = Math.ceil(height / 2), across = Math.ceil(width / 2),
    maxima = new Float32Array(down * across).fill(MASKED);
  for (let i = 0; i < height; i++)
    for (let j = 0, to = (i >> 1) * across; j < width; j++) {
      const value = values[i * width + j], at = to + (j >> 1);
      if (value > maxima[at]) maxima[at] = value;
    }
  return { height: down, width: across, values: maxima };
}

/** The largest weights of each row are stored: they are looked up and drawn without an array of all weights. */
function sparsePlane(map, head, { rows, columns, columnTokens }, renormalize, allowed) {
  const { k, columns: keys, steps } = decode(map), size = keys.length / (map.heads + 1);
  const first = (head === "average" ? map.heads : head) * size, columnOf = new Int32Array(columnTokens.length).fill(-1);
  columns.forEach((column, j) => columnOf[column] = j);
  const before = new Int32Array(columnTokens.length + 1); // how many shown columns there are before each one
  for (let column = 0; column < columnTokens.length; column++)
    before[column + 1] = before[column] + (columnOf[column] >= 0);
  const factor = row => {
    let hidden = 0;
    for (let n = first + row * k, end = n + k; renormalize && n < end; n++)
      if (columnOf[keys[n]] < 0) hidden += steps[n];
    return hidden < STEPS ? STEPS / (STEPS - hidden) : 1;
  };
  const factors = Float32Array.from(rows, factor);
  const at = (i, j) => {
    const begin = first + rows[i] * k;
    for (let n = begin; n < begin + k; n++)
      if (steps[n] && keys[n] === columns[j]) return { value: Math.min(1, steps[n] / STEPS * factors[i]),
        stored: true };
    const bound = k < columnTokens.length ? steps[begin + k - 1] : 0; // sorted: the largest first
    return { value: bound / STEPS * factors[i], stored: bound === 0 };
  };
  const read = (detail, part) => {
    const block = new Float32Array(part.height * part.width),
      last = Math.min(rows.length, (part.top + part.height) << detail);
    if (allowed) block.fill(MASKED);
    for (let i = part.top << detail; i < last; i++) {
      for (const [from, to] of allowed?.[rows[i]] ?? []) {
        const left = Math.max(0, (before[from] >> detail) - part.left), width = before[to] - before[from],
          right = Math.min(part.width, ((before[to] - 1) >> detail) - part.left + 1),
          line = ((i >> detail) - part.top) * part.width;
        if (width) for (let j = left; j < right; j++) block[line + j] = Math.max(0, block[line + j]);
      }
      for (let n = first + rows[i] * k, end = n + k; n < end && steps[n]; n++) {
        const j = (columnOf[keys[n]] >> detail) - part.left, to = ((i >> detail) - part.top) * part.width + j;
        if (columnOf[keys[n]] < 0 || j < 0 || j >= part.width) continue;
        block[to] = Math.max(block[to], Math.min(STEPS, steps[n] * factors[i]));
      }
    }
    return block;
  };
  return { at, read, cells: rows.length };
}

/** The weight that is drawn: 0 if it is not stored. */
export function drawnWeight(plane, row, column) {
  const { value, stored } = plane.at(row, column);
  return stored ? value : 0;
}

/** The whole plane at a level of detail, as { height, width, values } in steps. */
export function whole(plane, detail = 0) {
  const height = Math.ceil(plane.height / 2 ** detail), width = Math.ceil(plane.width / 2 ** detail);
  return { height, width, values: plane.read(detail, { top: 0, left: 0, height, width }) };
}

const THUMBNAIL = 96; // rows and columns up to which a thumbnail has all weights

/** A small picture of a head: { height, width, values } in steps, the overview of the payload or the weights. */
export function thumbnail(example, map, head, special = "shown") {
  if (!map.overview || special !== "shown") {
    const plane = planeOf(example, map, head, special);
    return whole(plane, Math.max(0, Math.ceil(Math.log2(Math.max(plane.height, plane.width) / THUMBNAIL))));
  }
  const { height, width, values } = map.overview, all = decodedOverview(map, values);
  const index = head === "average" ? map.heads : head, size = height * width,
    values16 = all.subarray(index * size, (index + 1) * size), blocked = blockedOverview(example, map);
  return { height, width, values: blocked ? Float32Array.from(values16, (value, i) => blocked[i] ? MASKED : value)
    : values16 };
}

const blocked = new WeakMap();

/** Which blocks of an overview have masked cells only; null if there is no mask. */
function blockedOverview(example, map) {
  const allowed = allowedRuns(example, map), { height, width } = map.overview;
  if (!allowed) return null;
  if (!blocked.has(map)) {
    const columns = example.texts[map.columns].length, isMasked = new Uint8Array(height * width).fill(1);
    // Block b covers the tokens from floor(b * size / blocks) on (see packing.py).
    const blockOf = (index, size, blocks) => Math.min(blocks, Math.floor(((index + 1) * blocks - 1) / size));
    allowed.forEach((ranges, row) => {
      const i = blockOf(row, allowed.length, height);
      for (const [from, to] of ranges)
        isMasked.fill(0, i * width + blockOf(from, columns, width), i * width + blockOf(to - 1, columns, width) + 1);
    });
    blocked.set(map, isMasked);
  }
  return blocked.get(map);
}

function decodedOverview(map, values) {
  if (!decoded.has(map.overview)) decoded.set(map.overview, new Uint16Array(bytes(values).buffer));
  return decoded.get(map.overview);
}

/** Paint { height, width, values } in steps onto a canvas, one pixel per value. */
export function paint({ height, width, values }, scale) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  const out = new Uint32Array(image.data.buffer), lut = scale.lut();
  for (let i = 0; i < out.length; i++) out[i] = values[i] < 0 ? 0 : lut[values[i] + 0.5 | 0]; // masked: transparent
  context.putImageData(image, 0, 0);
  return canvas;
}

const rescaled = new WeakMap(); // the largest weights of rescaled rows, by map

/** The largest weight of each head of a map, the average last; with special tokens hidden and rows rescaled to 1. */
function rescaledPeaks(example, map) {
  if (!rescaled.has(map))
    rescaled.set(map, [...Array(map.heads).keys(), "average"].map(head => {
      const { values } = whole(planeOf(example, map, head, "renormalized"));
      return values.reduce((most, value) => Math.max(most, value), 0) / STEPS;
    }));
  return rescaled.get(map);
}

const peaks = (example, map, special) =>
  special === "renormalized" ? rescaledPeaks(example, map) : map.statistics.peak;

/** Largest weight of a head of a map, or of all heads of all maps of an example. */
export const peakOf = (example, map, head, special) =>
  peaks(example, map, special)[head === "average" ? map.heads : head];
export const sharedPeak = (example, special) =>
  Math.max(0, ...example.maps.flatMap(map => peaks(example, map, special)));

const MANY = 64; // keys, from which on weights are small

/** The color curve that the state asks for, of the map of an example; over images, small weights must be visible. */
export const curveOf = (example, map, state) =>
  state.curve || (example.picture || example.texts[map.columns].length > MANY ? "root" : "linear");

/** The color scale that the state asks for, of a head of a map. */
export function scaleOf(colors, example, map, head, state) {
  const peak = state.scale === "own" ? peakOf(example, map, head, state.special) : sharedPeak(example, state.special);
  return colors(peak, curveOf(example, map, state));
}
