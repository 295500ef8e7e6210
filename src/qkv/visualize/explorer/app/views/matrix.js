// Tokens shaded by weight, and the heat map of one head or of the average.

import { tokenChips } from "../chips.js";
import { legend } from "../color.js";
import { axisNames, describe, exampleOf, scaleNote, selected, themeColors } from "../context.js";
import { element } from "../dom.js";
import { heatMap, heatMapFigure } from "../heatmap.js";
import { headStrip } from "../heads.js";
import { pin, selection } from "../state.js";
import { drawnWeight } from "../weights.js";

const MANY = 120; // tokens; from here on they are next to the heat map if the window is wide

export const matrix = {
  name: "matrix",
  label: "Matrix",
  controls: ["layer", "special", "scale", "curve"],

  accepts: (payload, state) => exampleOf(payload, state)?.maps.length > 0 && !exampleOf(payload, state).picture,

  render(container, payload, state) {
    const point = (row, column) => state.set({ pointed: row === null && column === null ? null : { row, column } });
    const leave = () => point(null, null);
    const heads = headStrip(container, payload, state);
    const reading = element("div", "", { className: "reading" }),
      drawing = element("div", "", { className: "drawing" });
    const split = element("div", "", { className: "parts" }, reading, drawing);
    container.append(split);
    const rows = tokenChips(reading,
      { id: "rows", leave, point: row => point(row, null), pinned: row => pin(state, row, null) });
    const columns = tokenChips(reading,
      { id: "cols", leave, point: column => point(null, column), pinned: column => pin(state, null, column) });
    const readout = element("p", "", { id: "readout", ariaLive: "polite" });
    const scale = element("div", "", { className: "scale" });
    reading.append(readout);
    const map = heatMap(drawing, {
      label: "Heat map: arrow keys move between cells, Enter pins, plus and minus zoom, 0 shows everything",
      point, pinned: (row, column) => pin(state, row, column),
    });
    drawing.append(scale);

    const drawAll = () => {
      const { example, map: layer, plane, scale: colors } = selected(payload, state);
      const [rowName, columnName] = axisNames(example, layer);
      split.classList.toggle("beside", plane.rows.length + plane.columns.length > MANY);
      rows.fill(rowName, plane.rowTokens, plane.rows, plane.key);
      columns.fill(columnName, plane.columnTokens, plane.columns, plane.key);
      map.show(plane, colors);
      scale.replaceChildren(legend(colors, scaleNote(payload, state), Boolean(plane.masked)),
        element("span", "Drag to move, Ctrl + wheel or + and − to zoom, click to pin.", { className: "note" }));
    };
    const drawSelection = () => {
      const { plane, scale: colors } = selected(payload, state);
      const at = selection(state, plane), { row, column } = at, { nodes, strongest } = describe(plane, at);
      columns.shade(row === null ? null : index => drawnWeight(plane, row, index), colors);
      rows.shade(column === null ? null : index => drawnWeight(plane, index, column), colors);
      // Scroll to the largest weights, and to pinned tokens, but not in the group under the pointer.
      const still = state.pointed === null, [best = 0] = strongest;
      rows.select(row, row !== null && state.row === row, still || column !== null ? row ?? best : null);
      columns.select(column, column !== null && state.column === column, still || row !== null ? column ?? best : null);
      map.select(at, true);
      readout.replaceChildren(...nodes);
    };
    const update = changed => {
      const pointing = [...changed].every(key => ["pointed", "row", "column"].includes(key));
      if (!pointing) {
        heads.update();
        drawAll();
      }
      drawSelection();
    };
    update(new Set(["view"]));
    return {
      update,
      heatMap: map,
      destroy: () => map.destroy(),
      figure: () => figure(payload, state),
    };
  },
};

function figure(payload, state) {
  const { plane, scale } = selected(payload, state);
  return heatMapFigure(plane, scale, themeColors(payload, state));
}
