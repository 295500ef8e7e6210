// Two examples side by side, of two models or inputs: equal tokens are selected in both.

import { tokenChips } from "../chips.js";
import { colourScale, legend } from "../colour.js";
import { axisNames, current, describe, exampleOf, scaleNote, themeColours } from "../context.js";
import { element, select } from "../dom.js";
import { heatMap, heatMapFigure } from "../heatmap.js";
import { headName } from "../heads.js";
import { matching } from "../matching.js";
import { clipped, LONGEST_TOKEN } from "../text.js";
import { drawnWeight, peakOf, planeOf, sharedPeak } from "../weights.js";

const SIDES = ["A", "B"], LONGEST = 120; // characters of a text
const NOTE = "Pointing at a token selects the equal token on the other side; dashed tokens have none.";

const comparable = example => Boolean(example) && example.maps.length > 0 && !example.picture
  && example.texts[example.maps[0].rows].length > 0;

export const compare = {
  name: "compare",
  label: "Side by side",
  controls: ["special", "scale", "curve"],

  accepts: (payload, state) => comparable(exampleOf(payload, state)) && others(payload, state).length > 0,

  render(container, payload, state) {
    const tools = element("div", "", { className: "sorting" }), scale = element("div", "", { className: "scale" }),
      difference = element("p", "", { id: "difference", className: "note" }),
      grid = element("div", "", { className: "panes" });
    container.append(tools, grid, difference, scale);
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
      panes.forEach((each, side) => each.fill(payload, state, side, shown[side], scales[side],
        { rows: matches.row[side], columns: matches.column[side] }));
      scale.replaceChildren(...state.scale === "own"
        ? scales.flatMap((each, side) =>
          [element("span", SIDES[side], { className: "label" }), legend(each, note(state))])
        : [legend(scales[0], note(state))], element("span", NOTE, { className: "note" }));
    };
    const update = changed => {
      if ([...changed].some(key => !["pointed", "row", "column", "side"].includes(key))) draw();
      const at = SIDES.map((_, side) => selectionOf(state, side, shown, matches));
      panes.forEach((each, side) => each.select(at[side], shown[side].plane, state));
      difference.textContent = distance(shown, at, matches);
    };
    update(new Set(["view"]));
    return { update, heatMap: panes[0].map, heatMaps: panes.map(each => each.map),
      destroy: () => panes.forEach(each => each.map.destroy()), figure: () => figure(payload, state, shown) };
  },
};

/** The index of the selected example; two examples of a server may be the same object. */
const leftOf = (payload, state) => Math.min(state.example, payload.examples.length - 1);

/** The examples that can be next to the selected one. */
const others = (payload, state) => [...payload.examples.keys()].filter(index =>
  index !== leftOf(payload, state) && comparable(payload.examples[index]));

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

/** The colour scale of each side, the same one unless each head has its own. */
function shownScales(payload, state, shown) {
  const { ramp } = themeColours(payload, state), curve = state.curve
    || (shown.some(({ plane }) => plane.columnTokens.length > 64) ? "root" : "linear");
  const shared = Math.max(...shown.map(({ example }) => sharedPeak(example)));
  return shown.map(({ map, head }) => colourScale(ramp,
    state.special === "renormalized" ? 1 : state.scale === "own" ? peakOf(map, head) : shared, curve));
}

const note = state => scaleNote(state, true).replace("all layers and heads", "all layers and heads of both sides");

/** The side that the pinned tokens belong to. */
const sideOf = state => state.side === "right" ? 1 : 0;

/** The tokens to mark on a side: those under the pointer or pinned there, or the equal ones of the other side. */
function selectionOf(state, side, shown, matches) {
  const { plane } = shown[side], from = state.pointed ? state.pointed.side ?? 0 : sideOf(state);
  const wanted = state.pointed ?? state;
  if (wanted.row === null && wanted.column === null) return { row: plane.rows[0], column: null };
  const mapped = key =>
    wanted[key] === null ? null : from === side ? wanted[key] : matches[key][from][wanted[key]] ?? -1;
  const [row, column] = [mapped("row"), mapped("column")];
  return { row: plane.rows.includes(row) ? row : null, column: plane.columns.includes(column) ? column : null };
}

/** One side: its title, layer and head, tokens, heat map and readout. */
function pane(grid, name, { point, pinned }) {
  const key = name.toLowerCase(), leave = () => point(null, null);
  const heading = element("h3", "", { id: `${key}-title` }), score = element("p", "", { className: "meta" }),
    choices = element("div", "", { className: "sorting" }),
    readout = element("p", "", { className: "readout", id: `${key}-readout`, ariaLive: "polite" });
  const box = element("section", "", { className: "pane", id: `${key}-pane` }, element("div", "", {}, heading, score),
    choices);
  box.setAttribute("aria-labelledby", heading.id);
  grid.append(box);
  const rows = tokenChips(box,
    { id: `${key}-rows`, leave, point: row => point(row, null), pinned: row => pinned(row, null) });
  const columns = tokenChips(box,
    { id: `${key}-cols`, leave, point: column => point(null, column), pinned: column => pinned(null, column) });
  box.append(readout);
  const map = heatMap(box, { point, pinned,
    label: `Heat map of ${name}: arrow keys move between cells, Enter pins, plus and minus zoom, 0 shows everything` });
  let colours = null;

  const fill = (payload, state, side, { example, map: layer, head, plane }, scale, matched) => {
    colours = scale;
    heading.replaceChildren(element("span", `${name} `, { className: "from" }),
      element("bdi", title(payload, example)));
    score.textContent = example.score === null ? ""
      : `${example.score_name} ${Number(example.score.toPrecision(3)).toString().replace("-", "−")}`;
    const set = (field, value) => state.set({ [side ? `${field}2` : field]: value });
    const heads = ["average", ...Array(layer.heads).keys()];
    choices.replaceChildren(
      ...example.maps.length > 1 ? [select(`Layer of ${name}`,
        example.maps.map(each => [each.layer, clipped(each.layer, LONGEST_TOKEN)]), layer.layer,
        value => set("layer", value))] : [],
      ...layer.heads > 1 ? [select(`Head of ${name}`, heads.map(each => [each, headName(each)]), head,
        value => set("head", value === "average" || side ? value : Number(value)))] : []);
    const [rowName, columnName] = axisNames(example, layer);
    rows.fill(rowName, plane.rowTokens, plane.rows, plane.key);
    columns.fill(columnName, plane.columnTokens, plane.columns, plane.key);
    for (const [chips, other] of [[rows, matched.rows], [columns, matched.columns]])
      for (const cell of chips.group.children)
        cell.classList.toggle("unmatched", other[Number(cell.dataset.index)] < 0);
    map.show(plane, scale);
  };
  const mark = (at, plane, state) => {
    const { row, column } = at, none = row === null && column === null;
    columns.shade(row === null ? null : index => drawnWeight(plane, row, index), colours);
    rows.shade(column === null ? null : index => drawnWeight(plane, index, column), colours);
    const { nodes, strongest } = none ? { nodes: ["No equal token."], strongest: [] } : describe(plane, at);
    const still = state.pointed === null || (state.pointed.side ?? 0) !== SIDES.indexOf(name), [best = 0] = strongest;
    const pinnedHere = state.pointed === null && (state.row !== null || state.column !== null);
    rows.select(row, pinnedHere && row !== null, still ? row ?? best : null);
    columns.select(column, pinnedHere && column !== null, still ? column ?? best : null);
    map.select(at, !none);
    readout.replaceChildren(...nodes);
  };
  return { fill, select: mark, map };
}

/** The total variation distance of two equal rows, if both sides attend to the same tokens. */
function distance(shown, at, matches) {
  const [a, b] = shown.map(each => each.plane), [forward] = matches.column;
  const same = a.columnTokens.length === b.columnTokens.length && forward.every((other, index) => other === index);
  if (!same || at.some(each => each.row === null) || matches.row[0][at[0].row] !== at[1].row) return "";
  const keys = a.columns.filter(key => b.columns.includes(key));
  const sum = keys.reduce((total, key) =>
    total + Math.abs(drawnWeight(a, at[0].row, key) - drawnWeight(b, at[1].row, key)), 0);
  return `Total variation distance of the two rows (half the sum of the absolute differences): ${(sum / 2).toFixed(4)}`;
}

/** The two heat maps next to each other. */
function figure(payload, state, shown) {
  const scales = shownScales(payload, state, shown), colours = themeColours(payload, state);
  const [left, right] = shown.map(({ plane }, side) => heatMapFigure(plane, scales[side], colours));
  const heading = (side, x) => ({ type: "text", x, y: 12, size: 12, anchor: "start", bold: true, fill: colours.ink,
    text: `${SIDES[side]} ${clipped(title(payload, shown[side].example), 40)}` });
  const moved = (items, x) => items.map(item => ({ ...item, x: item.x + x, y: item.y + 24 }));
  const gap = Math.max(left.width, 280) + 24;
  return { width: gap + Math.max(right.width, 280), height: 24 + Math.max(left.height, right.height),
    items: [heading(0, 8), heading(1, gap + 8), ...moved(left.items, 0), ...moved(right.items, gap)] };
}
