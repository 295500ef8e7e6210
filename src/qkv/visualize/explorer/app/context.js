// What views share: the example, layer and head that the state selects, colors of the theme, and the readout.

import { colorScale } from "./color.js";
import { element, quotation } from "./dom.js";
import { number, visible } from "./text.js";
import { planeOf, scaleOf } from "./weights.js";

const systemDark = matchMedia("(prefers-color-scheme: dark)");

/** Whether the page is dark: by its theme, or by the system's preference. */
export const isDark = state => state.theme === "dark" || (state.theme !== "light" && systemDark.matches);

/** Call `listener` when the system's preference changes. */
export const onSystemTheme = listener => systemDark.addEventListener("change", listener);

export const exampleOf = (payload, state) => payload.examples[Math.min(state.example, payload.examples.length - 1)];

/** The selected example, map and head; the head is "average" if the map does not have the selected one. */
export function current(payload, state) {
  const example = exampleOf(payload, state), maps = example?.maps ?? [];
  const map = maps.find(each => each.layer === state.layer) ?? maps[0];
  const head = map && state.head !== "average" && state.head < map.heads ? state.head : "average";
  return { example, map, head: map?.heads === 1 ? 0 : head };
}

const GROUPS = { "encoder.#": "Encoder self-attention", "encoder.#.self": "Encoder self-attention",
  "decoder.#.self": "Decoder self-attention", "decoder.#.cross": "Decoder cross-attention" };

/** The layers of each kind, in ascending order: [{ name, maps }], encoder before decoder, others in their order. */
export function layerGroups(maps) {
  const groups = new Map(Object.keys(GROUPS).map(kind => [kind, []]));
  for (const map of maps) {
    const kind = map.layer.replace(/\d+/g, "#");
    groups.set(kind, [...groups.get(kind) ?? [], map]);
  }
  return [...groups].filter(([, found]) => found.length).map(([kind, found]) => ({
    name: GROUPS[kind] ?? kind.replaceAll(/\.?#/g, ""),
    maps: [...found].sort((a, b) => a.layer.localeCompare(b.layer, "en", { numeric: true })) }));
}

/** The layers in the order of their groups, from bottom to top in each. */
export const layersOf = example => layerGroups(example.maps).flatMap(({ maps }) => maps);

/** Colors of the theme: `ramp`, `negative` for negative scores, and the page's `ink` and `paper`. */
export function themeColors(payload, state) {
  const style = getComputedStyle(document.body);
  const scheme = isDark(state) ? "dark" : "light";
  return { ramp: payload.ramps[scheme], negative: payload.negative_ramps[scheme], ink: style.color,
    paper: style.backgroundColor };
}

/** The plane and the color scale of the selected head. */
export function selected(payload, state) {
  const { example, map, head } = current(payload, state);
  return { example, map, head, plane: planeOf(example, map, head, state.special),
    scale: scaleFor(payload, state, map, head) };
}

/** The color scale of a head of a map of an example, by default the selected one. */
export function scaleFor(payload, state, map, head, example = exampleOf(payload, state)) {
  const { ramp } = themeColors(payload, state);
  return scaleOf((peak, curve) => colorScale(ramp, peak, curve), example, map, head, state);
}

/** Names of the color scales, in the control and in legends. */
export const SCALES = { shared: "one for all layers and heads", own: "one for each head" };

/** Whether an example has several heads, of which the color scale can be one for all or that of each. */
export const hasSeveralHeads = ({ maps }) => maps.length > 1 || maps.some(map => map.heads > 1);

/** What the color scale covers, for its legend. */
export function scaleNote(payload, state, several = hasSeveralHeads(exampleOf(payload, state))) {
  const special = { hidden: "special tokens hidden", renormalized: "special tokens hidden, rows rescaled to 1" };
  return [several ? `color scale: ${SCALES[state.scale] ?? SCALES.shared}` : "",
    special[state.special] ?? ""].filter(Boolean).join("; ");
}

/** Labels of the rows and columns: output and input of an encoder-decoder, steps and locations, or query and key. */
export function axisNames(example, map) {
  const reads = map.columns !== map.rows && map.columns === example.maps[0].columns
    && map.rows === example.maps[0].rows;
  return example.memory ? ["Step", "Location"] : reads && example.text ? ["Output", "Input"] : ["Query", "Key"];
}

const LEAST = "with a weight of 0.01 or more";
const ATTENTION = { verbs: ["attends to", "is attended to by"],
  none: [` attends to no key ${LEAST}`, `: no query attends to it ${LEAST}`],
  rowName: token => quotation(visible(token)), columnName: token => quotation(visible(token)) };

/**
 * Describe a selection: the weight of a cell, or the largest weights of a row or a column. `words` replace the verbs,
 * of rows and of columns, and the names of tokens.
 */
export function describe(plane, { row, column }, words = {}) {
  const both = row !== null && column !== null, { verbs, rowName, columnName } = { ...ATTENTION, ...words };
  const none = words.verbs?.map(verb => ` ${verb} nothing ${LEAST}`) ?? ATTENTION.none;
  const rows = { tokens: plane.rowTokens, name: rowName }, columns = { tokens: plane.columnTokens, name: columnName };
  const [subject, others, named] = row !== null ? [rowName(rows.tokens[row]), plane.columns, columns]
    : [columnName(columns.tokens[column]), plane.rows, rows];
  if (both && plane.masked?.(row, column))
    return { nodes: [columnName(columns.tokens[column]), " is masked for ", subject], strongest: [column] };
  const weight = index => row !== null ? plane.at(row, index) : plane.at(index, column);
  const strongest = both ? [column] : largest(others, weight);
  const verb = ` ${verbs[row !== null ? 0 : 1]} `;
  const nodes = [subject, strongest.length ? verb : none[row !== null ? 0 : 1]];
  for (const index of strongest)
    nodes.push(element("span", "", { className: "pair" }, named.name(named.tokens[index]), " ",
      element("span", number(weight(index)), { className: "number" }), " "));
  return { nodes, strongest };
}

/** At most five indices with the largest stored weights of at least 0.01. */
function largest(indices, weight) {
  const best = [];
  for (const index of indices) {
    const { value, stored } = weight(index);
    if (!stored || value < 0.01) continue;
    const rank = best.findIndex(each => each.value < value);
    best.splice(rank < 0 ? best.length : rank, 0, { index, value });
    if (best.length > 5) best.pop();
  }
  return best.map(each => each.index);
}
