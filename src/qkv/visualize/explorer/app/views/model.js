// All layers and heads as thumbnails: a grid of layers and heads, or sorted by a statistic.

import { oneOf } from "../address.js";
import { colorScale, legend } from "../color.js";
import { exampleOf, layerGroups, scaleFor, scaleNote, themeColors } from "../context.js";
import { element, listbox, mark, option, select } from "../dom.js";
import { thumbnailCanvas } from "../heads.js";
import { clipped, LONGEST_TOKEN } from "../text.js";

// Statistics of heads: text of the choice, explanation, number of decimals.
const STATISTICS = {
  entropy: ["entropy", "Entropy: mean over queries of −Σ w log₂ w, in bits.", 2],
  distance: ["distance", "Distance: mean distance of a key from its query, weighted by attention, in tokens.", 1],
  diagonality: ["diagonality",
    "Diagonality: correlation of the positions of query and key, weighted by attention; 1 is a diagonal.", 2],
};

export const model = {
  name: "model",
  label: "All heads",
  aliases: ["heads"],
  controls: ["special", "scale", "curve"],
  keys: { sort: oneOf(...Object.keys(STATISTICS)), order: oneOf("descending") },

  accepts: (payload, state) => (exampleOf(payload, state)?.maps ?? []).reduce((sum, map) => sum + map.heads, 0) > 1,

  render(container, payload, state) {
    const tools = element("div", "", { className: "sorting" }), note = element("p", "", { className: "note" });
    const grid = element("div", "", { id: "grid", role: "listbox", ariaLabel: "Heads of all layers" });
    const scale = element("div", "", { className: "scale" });
    container.append(note, grid, scale);
    listbox(grid, { chosen: index => {
      const { layer, head } = heads(payload, state)[index];
      state.set({ layer, head, view: exampleOf(payload, state).picture ? "picture" : "matrix", row: null,
        column: null });
    } });

    const update = changed => {
      if (changed.size && [...changed].every(key => ["pointed", "row", "column"].includes(key))) return;
      const sort = STATISTICS[state.sort] ? state.sort : "", descending = state.order === "descending";
      tools.replaceChildren(
        select("Sort by", [["", "layer"], ...Object.entries(STATISTICS).map(([name, [text]]) => [name, text])], sort,
          value => state.set({ sort: value })),
        ...sort ? [select("Order", [["", "smallest first"], ["descending", "largest first"]], state.order ?? "",
          order => state.set({ order }))] : []);
      note.textContent = sort ? STATISTICS[sort][1] : "";
      show(grid, payload, state, sort, descending);
      const { maps } = exampleOf(payload, state), [first] = maps, masked = maps.some(map => map.mask !== null);
      scale.replaceChildren(state.scale === "own"
        ? legend(colorScale(themeColors(payload, state).ramp, 1, scaleFor(payload, state, first, 0).curve),
          "as a share of the largest weight of each head", masked)
        : legend(scaleFor(payload, state, first, 0), scaleNote(payload, state), masked),
      element("span", "Each pixel is the maximum over the tokens it covers. Choose a head to see its matrix.",
        { className: "note" }));
    };
    update(new Set());
    return { update, tools, figure: () => figure(grid, themeColors(payload, state)) };
  },
};

/** The number of a layer, or its name if it has none. */
const numberOf = layer => layer.match(/^\D*(\d+)\D*$/)?.[1] ?? clipped(layer, LONGEST_TOKEN);

/** All heads of an example, in the order of the grid: { layer, head, map, label }. */
function heads(payload, state) {
  return layerGroups(exampleOf(payload, state).maps).flatMap(({ maps }) => maps).flatMap(map =>
    [...Array(map.heads).keys()].map(head =>
      ({ layer: map.layer, head, map, label: `${clipped(map.layer, LONGEST_TOKEN)} · ${head}` })));
}

function show(grid, payload, state, sort, descending) {
  const all = heads(payload, state), order = [...all.keys()];
  const statistic = index => sort ? all[index].map.statistics[sort][all[index].head] ?? Infinity : 0;
  if (sort) order.sort((a, b) => (descending ? -1 : 1) * (statistic(a) - statistic(b)));
  const cell = index => {
    const { map, head, label } = all[index], box = option(index, thumbnailCanvas(payload, state, map, head));
    const value = sort && map.statistics[sort][head],
      text = sort ? value === null ? "–" : value.toFixed(STATISTICS[sort][2]) : "";
    if (sort) box.append(element("span", label), element("span", text, { className: "value" }));
    box.ariaLabel = [label,
      ...Object.entries(STATISTICS).map(([name, [, , decimals]]) =>
        `${name} ${map.statistics[name][head]?.toFixed(decimals) ?? "undefined"}`)].join(", ");
    box.title = box.ariaLabel;
    return box;
  };
  if (sort) grid.replaceChildren(element("div", "", { className: "heads" }, ...order.map(cell)));
  else grid.replaceChildren(element("div", "", { className: "layer-groups" },
    ...layerGroups(exampleOf(payload, state).maps).map(group => layerGrid(group, map =>
      order.filter(index => all[index].map === map).map(cell)))));
  mark(grid, all.findIndex(each => each.layer === state.layer && each.head === state.head));
}

/** The layers of a group as rows, their heads as columns; `cellsOf(map)` are the cells of a row. */
function layerGrid({ name, maps }, cellsOf) {
  const most = Math.max(...maps.map(map => map.heads)), table = element("div", "", { className: "layer-grid" });
  const column = text => element("span", text, { className: "column", ariaHidden: "true" });
  table.append(column(""), ...[...Array(most).keys()].map(head => column(String(head))));
  for (const map of maps) {
    const cells = cellsOf(map);
    cells.forEach((cell, head) => { cell.style.gridColumn = String(head + 2); });
    table.append(element("span", numberOf(map.layer), { className: "row", title: map.layer, ariaHidden: "true" }),
      ...cells);
  }
  const box = element("div", "", { className: "layer-group", role: "group", ariaLabel: name },
    element("span", `${name}: rows are layers, columns are heads`, { className: "label" }), table);
  box.style.setProperty("--heads", String(most));
  return box;
}

/** The grid as it is on the page, or the sorted heads in rows of twelve. */
function figure(grid, { ink }) {
  const groups = [...grid.querySelectorAll(".layer-group")];
  if (!groups.length) return sortedFigure(grid, { ink });
  const size = 100, text = (x, y, words, anchor, bold) =>
    ({ type: "text", x, y, text: words, size: 11, anchor, bold, fill: ink });
  let left = 8, height = 0;
  const items = groups.flatMap(group => {
    const cells = [...group.querySelectorAll("[role=option]")], from = left + 64;
    const rows = [...group.querySelectorAll(".row")].map(row => row.textContent);
    const drawn = [text(left, 12, group.ariaLabel, "start", true)];
    let row = -1, y = 40, tall = 0;
    for (const cell of cells) {
      const head = Number(cell.style.gridColumn) - 2, canvas = cell.querySelector("canvas");
      if (head === 0) {
        y += row < 0 ? 0 : tall + 6;
        tall = 94 * canvas.height / canvas.width;
        drawn.push(text(from - 8, y + tall / 2, rows[++row], "end"));
      }
      if (row === 0) drawn.push(text(from + head * size + 47, 30, String(head), "middle"));
      drawn.push({ type: "image", x: from + head * size, y, w: 94, h: tall, canvas });
    }
    left = from + Number(group.style.getPropertyValue("--heads")) * size + 24;
    height = Math.max(height, y + tall + 8);
    return drawn;
  });
  return { width: left, height, items };
}

function sortedFigure(grid, { ink }) {
  const cells = [...grid.querySelectorAll("[role=option]")], across = Math.min(12, Math.max(1, cells.length)),
    size = 108;
  const items = cells.flatMap((cell, n) => {
    const x = 8 + (n % across) * size, y = 8 + Math.floor(n / across) * (size + 12),
      canvas = cell.querySelector("canvas");
    const [label, value] = [...cell.querySelectorAll("span")].map(span => span.textContent);
    return [{ type: "image", x, y, w: 96, h: 96 * canvas.height / canvas.width, canvas },
      { type: "text", x, y: y + 104, text: `${label} ${value}`, size: 10,
        anchor: "start", fill: ink }];
  });
  return { width: 16 + across * size, height: 16 + Math.ceil(cells.length / across) * (size + 12), items };
}
