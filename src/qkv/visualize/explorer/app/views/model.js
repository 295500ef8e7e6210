// All layers and heads as thumbnails, in the order of the model or sorted by a statistic.

import { colourScale, legend } from "../colour.js";
import { exampleOf, scaleFor, scaleNote, themeColours } from "../context.js";
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
  controls: ["special", "scale", "curve"],

  accepts: (payload, state) => (exampleOf(payload, state)?.maps ?? []).reduce((sum, map) => sum + map.heads, 0) > 1,

  render(container, payload, state) {
    const tools = element("div", "", { className: "sorting" }), note = element("p", "", { className: "note" });
    const grid = element("div", "", { id: "grid", role: "listbox", ariaLabel: "Heads of all layers" });
    const scale = element("div", "", { className: "scale" });
    container.append(tools, note, grid, scale);
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
      const first = exampleOf(payload, state).maps[0];
      scale.replaceChildren(state.scale === "own"
        ? legend(colourScale(themeColours(payload, state).ramp, 1, scaleFor(payload, state, first, 0).curve),
          "as a share of the largest weight of each head")
        : legend(scaleFor(payload, state, first, 0), scaleNote(state, true)),
      element("span", "A pixel shows the largest weight of its tokens. Choose a head to see its matrix.",
        { className: "note" }));
    };
    update(new Set());
    return { update, figure: () => figure(grid, themeColours(payload, state)) };
  },
};

/** All heads of an example: { layer, head, map, label }. */
function heads(payload, state) {
  return exampleOf(payload, state).maps.flatMap(map =>
    [...Array(map.heads).keys()].map(head =>
      ({ layer: map.layer, head, map, label: `${clipped(map.layer, LONGEST_TOKEN)} · ${head}` })));
}

function show(grid, payload, state, sort, descending) {
  const all = heads(payload, state), order = [...all.keys()];
  const statistic = index => sort ? all[index].map.statistics[sort][all[index].head] ?? Infinity : 0;
  if (sort) order.sort((a, b) => (descending ? -1 : 1) * (statistic(a) - statistic(b)));
  const cell = index => {
    const { map, head, label } = all[index], made = option(index, thumbnailCanvas(payload, state, map, head));
    const value = sort && map.statistics[sort][head],
      text = sort ? value === null ? "–" : value.toFixed(STATISTICS[sort][2]) : "";
    made.append(element("span", sort ? label : `head ${head}`),
      ...sort ? [element("span", text, { className: "value" })] : []);
    made.ariaLabel = [label,
      ...Object.entries(STATISTICS).map(([name, [, , decimals]]) =>
        `${name} ${map.statistics[name][head]?.toFixed(decimals) ?? "undefined"}`)].join(", ");
    made.title = made.ariaLabel;
    return made;
  };
  if (sort) grid.replaceChildren(element("div", "", { className: "heads" }, ...order.map(cell)));
  else grid.replaceChildren(...exampleOf(payload,
    state).maps.map(map => element("div", "", { className: "layer-row", role: "group", ariaLabel: map.layer },
    element("span", clipped(map.layer, LONGEST_TOKEN), { className: "label" }),
    element("div", "", { className: "heads" }, ...order.filter(index => all[index].map === map).map(cell)))));
  mark(grid, all.findIndex(each => each.layer === state.layer && each.head === state.head));
}

function figure(grid, { ink }) {
  const cells = [...grid.querySelectorAll("[role=option]")], across = Math.min(12, Math.max(1, cells.length)),
    size = 108;
  const items = cells.flatMap((cell, n) => {
    const x = 8 + (n % across) * size, y = 8 + Math.floor(n / across) * (size + 12),
      canvas = cell.querySelector("canvas");
    const [label, value] = [...cell.querySelectorAll("span")].map(span => span.textContent);
    const name = cell.title.split(",")[0];
    return [{ type: "image", x, y, w: 96, h: 96 * canvas.height / canvas.width, canvas },
      { type: "text", x, y: y + 104, text: [value ? label : name, value].filter(Boolean).join(" "), size: 10,
        anchor: "start", fill: ink }];
  });
  return { width: 16 + across * size, height: 16 + Math.ceil(cells.length / across) * (size + 12), items };
}
