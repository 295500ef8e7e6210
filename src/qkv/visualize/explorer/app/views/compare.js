// Two examples side by side, of two models or inputs: equal tokens are selected in both.

import { isExample, isHead, isLayer, oneOf } from "../address.js";
import { colorScale, legend } from "../color.js";
import { current, exampleOf, scaleNote, themeColors } from "../context.js";
import { element, select } from "../dom.js";
import { imageNote, overlayScale } from "../image.js";
import { matching } from "../matching.js";
import { imagePane, textPane } from "../panes.js";
import { firstQuery } from "../state.js";
import { clipped } from "../text.js";
import { curveOf, drawnWeight, peakOf, planeOf, sharedPeak } from "../weights.js";

const SIDES = ["A", "B"], LONGEST = 120; // characters of a text
const NOTE = "Pointing at a token selects the equal token on the other side; "
  + "tokens with a dashed outline have no match.";

const comparable = example => Boolean(example) && example.maps.length > 0
  && example.texts[example.maps[0].rows].length > 0;

export const compare = {
  name: "compare",
  label: "Side by side",
  aliases: ["side-by-side"],
  controls: ["special", "scale", "curve"],
  keys: { other: isExample, side: oneOf("right"), layer2: isLayer, head2: isHead },

  accepts: (payload, state) => comparable(exampleOf(payload, state)) && others(payload, state).length > 0,

  render(container, payload, state) {
    const tools = element("div", "", { className: "sorting" }), scale = element("div", "", { className: "scale" }),
      difference = element("p", "", { id: "difference", className: "note" }),
      grid = element("div", "", { className: "panes" });
    container.append(grid, difference, scale);
    const pane = exampleOf(payload, state).picture ? imagePane : textPane;
    const panes = SIDES.map((name, side) => pane(grid, name, {
      point: (row, column) => state.set({ pointed: row === null && column === null ? null : { row, column, side } }),
      pinned: (row, column) => {
        const same = sideOf(state) === side && state.row === row && state.column === column;
        state.set({ side: side ? "right" : "", row: same ? null : row, column: same ? null : column });
      },
    }));
    let shown = [], matches = null;

    const draw = () => {
      shown = SIDES.map((_, side) => planeFor(payload, state, side));
      const [a, b] = shown.map(each => each.plane), scales = shownScales(payload, state, shown);
      matches = { row: matching(a.rowTokens, b.rowTokens), column: matching(a.columnTokens, b.columnTokens) };
      tools.replaceChildren(select("Compare with", others(payload, state).map(index =>
        [index, `${index + 1}: ${title(payload, payload.examples[index])}`]), otherOf(payload, state),
      other => state.set({ other, row: null, column: null, pointed: null, layer2: "", head2: "" })));
      tools.hidden = others(payload, state).length < 2;
      panes.forEach((each, side) => each.fill(title(payload, shown[side].example), shown[side], scales[side],
        { rows: matches.row[side], columns: matches.column[side] },
        (key, value) => state.set(chosen(side, key, value))));
      const note = noteOf(payload, state, shown), masked = shown.some(({ plane }) => plane.masked);
      scale.replaceChildren(...scales[0].key === scales[1].key ? [legend(scales[0], note, masked)]
        : scales.flatMap((each, side) => [element("span", SIDES[side], { className: "label" }),
          legend(each, note, masked)]),
      element("span", NOTE, { className: "note" }));
    };
    const update = changed => {
      if ([...changed].some(key => !["pointed", "row", "column", "side"].includes(key))) draw();
      const at = SIDES.map((_, side) => selectionOf(state, side, shown, matches));
      const pinned = state.pointed === null && (state.row !== null || state.column !== null);
      panes.forEach((each, side) =>
        each.select(at[side], { here: state.pointed !== null && (state.pointed.side ?? 0) === side, pinned }));
      difference.textContent = distance(shown, at, matches);
    };
    update(new Set(["view"]));
    return { update, tools, heatMap: panes[0].map, heatMaps: panes.map(each => each.map),
      destroy: () => panes.forEach(each => each.destroy()),
      figure: () => figure(panes.map(each => each.figure(themeColors(payload, state))),
        shown.map(each => title(payload, each.example)), themeColors(payload, state)) };
  },
};

/** The index of the selected example; two examples of a server may be the same object. */
const leftOf = (payload, state) => Math.min(state.example, payload.examples.length - 1);

/** The examples that can be next to the selected one: texts next to texts, images next to images. */
const others = (payload, state) => [...payload.examples.keys()].filter(index =>
  index !== leftOf(payload, state) && comparable(payload.examples[index])
    && payload.examples[index].picture?.kind === exampleOf(payload, state).picture?.kind);

/** The example on the right: the chosen one, else the same input of another model, else the next one. */
function otherOf(payload, state) {
  const choices = others(payload, state), left = exampleOf(payload, state), wanted = Number(state.other || NaN);
  if (choices.includes(wanted)) return wanted;
  const twin = choices.find(index => payload.examples[index].source === left.source
    && payload.examples[index].model !== left.model);
  return twin ?? choices.find(index => index > leftOf(payload, state)) ?? choices[0];
}

/** A line that names an example: its model, if there are several, its input and output. */
function title(payload, example) {
  const several = new Set(payload.examples.map(each => each.model)).size > 1;
  const text = [example.source, example.text].filter(Boolean).join(" → ");
  return clipped([several ? example.model : "", text].filter(Boolean).join(": "), LONGEST);
}

/** The state of a side: on the right, layer and head are those of the left unless they are chosen. */
function stateOf(payload, state, side) {
  if (!side) return state;
  const head = /^\d+$/.test(state.head2 ?? "") ? Number(state.head2) : state.head2 || state.head;
  return { ...state, example: otherOf(payload, state), layer: state.layer2 || state.layer, head };
}

function planeFor(payload, state, side) {
  const { example, map, head } = current(payload, stateOf(payload, state, side));
  return { example, map, head, plane: planeOf(example, map, head, state.special) };
}

/** The change of the state that chooses a layer or a head of a side. */
function chosen(side, key, value) {
  if (side) return { [`${key}2`]: value };
  return { [key]: key === "head" && value !== "average" ? Number(value) : value };
}

/** The color scale of each side, the same one unless each head has its own. */
function shownScales(payload, state, shown) {
  const { ramp } = themeColors(payload, state),
    curve = shown.some(({ example, map }) => curveOf(example, map, state) === "root") ? "root" : "linear";
  const shared = Math.max(...shown.map(({ example }) => sharedPeak(example, state.special)));
  return shown.map(({ example, example: { picture }, map, head }) => {
    const peak = state.scale === "own" ? peakOf(example, map, head, state.special) : shared;
    return picture ? overlayScale(picture, peak, curve) : colorScale(ramp, peak, curve);
  });
}

/** What the scale covers, for its legend. */
const noteOf = (payload, state, [{ example }]) => (example.picture ? imageNote : scaleNote)(payload, state, true)
  .replace("all layers and heads", "all layers and heads of both sides");

/** The side that the pinned tokens belong to. */
const sideOf = state => state.side === "right" ? 1 : 0;

/** The tokens to mark on a side: those under the pointer or pinned there, or the equal ones of the other side. */
function selectionOf(state, side, shown, matches) {
  const { plane } = shown[side], from = state.pointed ? state.pointed.side ?? 0 : sideOf(state);
  const wanted = state.pointed ?? state;
  if (wanted.row === null && wanted.column === null) return { row: firstQuery(plane), column: null };
  const mapped = key =>
    wanted[key] === null ? null : from === side ? wanted[key] : matches[key][from][wanted[key]] ?? -1;
  const [row, column] = [mapped("row"), mapped("column")];
  return { row: plane.rows.includes(row) ? row : null, column: plane.columns.includes(column) ? column : null };
}

/** The total variation distance of two equal rows, if both sides attend to the same tokens. */
function distance(shown, at, matches) {
  const [a, b] = shown.map(each => each.plane), [forward] = matches.column;
  const same = a.columnTokens.length === b.columnTokens.length && forward.every((other, index) => other === index);
  if (!same || at.some(each => each.row === null) || matches.row[0][at[0].row] !== at[1].row) return "";
  const shared = new Set(b.columns), sum = a.columns.filter(key => shared.has(key)).reduce((total, key) =>
    total + Math.abs(drawnWeight(a, at[0].row, key) - drawnWeight(b, at[1].row, key)), 0);
  return `Total variation distance of the two rows (half the sum of the absolute differences): ${(sum / 2).toFixed(4)}`;
}

/** The two figures next to each other, with their titles. */
function figure([left, right], titles, { ink }) {
  const gap = Math.max(left.width, 280) + 24;
  const heading = (side, x) => ({ type: "text", x, y: 12, size: 12, anchor: "start", bold: true, fill: ink,
    text: `${SIDES[side]} ${clipped(titles[side], 40)}` });
  const moved = (items, x) => items.map(item => ({ ...item, x: item.x + x, y: item.y + 24 }));
  return { width: gap + Math.max(right.width, 280), height: 24 + Math.max(left.height, right.height),
    items: [heading(0, 8), heading(1, gap + 8), ...moved(left.items, 0), ...moved(right.items, gap)] };
}
