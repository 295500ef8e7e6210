// The operands and results of attention in one head, and sentences that compute each step with its numbers.

import { quoted } from "./text.js";
import { bytes } from "./weights.js";

const unpacked = new WeakMap();

/** Decode a matrix of the payload once: { rows, columns, at(row, column), row(index) }. */
export function matrixOf(packed) {
  if (!unpacked.has(packed)) {
    const values = new Float32Array(bytes(packed.values).buffer), [rows, columns] = packed.shape;
    unpacked.set(packed, { rows, columns, at: (i, j) => values[i * columns + j],
      row: i => values.subarray(i * columns, (i + 1) * columns) });
  }
  return unpacked.get(packed);
}

/** The operands of a query: vectors q, k(j) and v(j), and score(j), allowed(j), weight(j) of each key, and output. */
export function operandsOf(head, query) {
  const names = ["query", "key", "value", "scores", "allowed", "weights", "output"],
    [q, k, v, scores, allowed, weights, output] = names.map(name => matrixOf(head[name]));
  return { head, keys: k.rows, q: q.row(query), k: j => k.row(j), v: j => v.row(j), score: j => scores.at(query, j),
    allowed: j => allowed.at(query, j) > 0, weight: j => weights.at(query, j), output: output.row(query) };
}

/** A number with four decimals and a real minus sign, if it is not zero. */
export const decimal = value => value.toFixed(4).replace(/^-(?=[0.]+$)/, "").replace("-", "−");
const factor = value => value < 0 ? `(${decimal(value)})` : decimal(value);
const MOST = 8; // numbers of a vector that are written out

/** The first numbers of a vector: "[0.1000, −0.2000, …]". */
export const vector = values =>
  `[${[...values.subarray(0, MOST)].map(decimal).join(", ")}${values.length > MOST ? ", …" : ""}]`;

const allowedKeys = operands => Array.from({ length: operands.keys }, (_, j) => j).filter(operands.allowed);

/** The softmax of the scores, { top, sum }; null if the weights are those of another function. */
function softmax(operands) {
  const keys = allowedKeys(operands), top = Math.max(...keys.map(operands.score));
  const sum = keys.reduce((total, j) => total + Math.exp(operands.score(j) - top), 0);
  const same = keys.every(j => Math.abs(Math.exp(operands.score(j) - top) / sum - operands.weight(j)) < 1e-3);
  return keys.length && same ? { top, sum } : null;
}

function scoreText(operands, key) {
  const { head, q } = operands, k = operands.k(key), score = operands.score(key);
  if (head.scale === null) return `${head.score} = ${decimal(score)}`;
  const products = q.map((value, i) => value * k[i]), dot = products.reduce((a, b) => a + b, 0);
  const terms = [...q.subarray(0, 3)].map((value, i) => `${factor(value)} · ${factor(k[i])}`).join(" + ");
  const scale = head.scale === 1 ? "" : `, times ${decimal(head.scale)}`;
  const bias = head.biased ? `, plus the position's bias ${decimal(score - head.scale * dot)}` : "";
  return `q · k = ${terms}${q.length > 3 ? " + …" : ""} = ${decimal(dot)}${scale}${bias}: score ${decimal(score)}`;
}

function weightText(operands, key) {
  const sums = softmax(operands), weight = decimal(operands.weight(key));
  if (!operands.allowed(key)) return `weight ${weight}, because the key is masked`;
  if (!sums) return `${operands.head.align}: weight ${weight}`;
  return `exp(${decimal(operands.score(key))} − ${factor(sums.top)}) / ${decimal(sums.sum)} = ${weight}`;
}

function sumText(operands) {
  const keys = allowedKeys(operands).sort((a, b) => operands.weight(b) - operands.weight(a));
  const terms = keys.slice(0, 3).map(j => `${decimal(operands.weight(j))} · ${factor(operands.v(j)[0])}`).join(" + ");
  const added = operands.head.adds_to_output ? " + the position's values" : "";
  return `First number: ${terms || "0"}${keys.length > 3 ? " + …" : ""}${added} = ${decimal(operands.output[0])}. `
    + `Output: ${vector(operands.output)}`;
}

/** The steps of attention: [name, explanation, sentence with numbers (operands, query token, key token, key)]. */
export const STAGES = [
  ["Query", "The query vector is compared with the key of every token.",
    (operands, query) => `q of ${quoted(query)}: ${vector(operands.q)}`],
  ["Keys", "Each token has a key of the same kind.",
    (operands, query, token, key) => `k of ${quoted(token)}: ${vector(operands.k(key))}`],
  ["Scores", "A score compares the query with a key.",
    (operands, query, token, key) => `${quoted(query)} and ${quoted(token)}: ${scoreText(operands, key)}`],
  ["Mask", "Keys that the query must not attend to are left out, such as later tokens in a language model.",
    (operands, query, token, key) => `${allowedKeys(operands).length} of ${operands.keys} keys are visible; `
      + `${quoted(token)} is ${operands.allowed(key) ? "visible" : "masked"}`],
  ["Weights", "The scores of the visible keys become weights that sum to 1.",
    (operands, query, token, key) => `${quoted(token)}: ${weightText(operands, key)}`],
  ["Weighted sum", "The output is the sum of the values, each times its weight.",
    operands => sumText(operands)],
];
