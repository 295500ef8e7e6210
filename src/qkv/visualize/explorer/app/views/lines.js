// Queries and keys as two columns of tokens, with a line for each large weight.

import { legend } from "../colour.js";
import { axisNames, describe, exampleOf, scaleNote, selected, themeColours } from "../context.js";
import { element, listbox, mark, option } from "../dom.js";
import { headStrip } from "../heads.js";
import { pin, selection } from "../state.js";
import { clipped, spelled, visible } from "../text.js";
import { drawnWeight } from "../weights.js";

const MOST_TOKENS = 160; // of a column, around the selected token
const MOST_LINES = 1500;
const LEAST = 0.01; // weights below are not drawn
const ROW = 26, GAP = 220; // pixels
const SVG = "http://www.w3.org/2000/svg";

export const lines = {
  name: "lines",
  label: "Lines",
  controls: ["layer", "special", "scale", "curve"],

  accepts: (payload, state) => exampleOf(payload, state)?.maps.length > 0 && !exampleOf(payload, state).picture,

  render(container, payload, state) {
    const heads = headStrip(container, payload, state);
    const readout = element("p", "", { id: "readout", ariaLive: "polite" });
    const stage = element("div", "", { className: "bipartite" }), scale = element("div", "", { className: "scale" });
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("aria-hidden", "true");
    const sides = ["query", "key"].map(side => column(stage, side, state));
    sides[0].group.after(svg);
    container.append(readout, stage, scale);
    let drawn = null;

    const layOut = () => {
      const { example, map, plane, scale: colours } = selected(payload, state), at = selection(state, plane);
      const [rowName, columnName] = axisNames(example, map);
      const rows = around(plane.rows, at.row),
        columns = around(plane.columns, at.column ?? describe(plane, at).strongest[0]);
      sides[0].fill(rowName, plane.rowTokens, rows, plane.rows.length);
      sides[1].fill(columnName, plane.columnTokens, columns, plane.columns.length);
      drawn = { plane, colours, rows, columns, links: strongest(plane, rows, columns) };
      const { links } = drawn, least = links.limited ? Math.max(LEAST, links.at(-1)?.weight ?? 0) : LEAST;
      scale.replaceChildren(legend(colours, scaleNote(state, true)), element("span",
        `Lines for weights of at least ${least.toPrecision(2)}; their opacity and width grow with the weight.`,
          { className: "note" }));
    };
    const drawLines = () => {
      const { plane, links } = drawn,
        pointed = state.pointed ?? (state.row !== null || state.column !== null ? selection(state, plane) : null);
      const width = svg.clientWidth || GAP, height = Math.max(drawn.rows.length, drawn.columns.length) * ROW;
      svg.setAttribute("height", height);
      svg.replaceChildren(...links.map(link => {
        const path = document.createElementNS(SVG, "path"),
          { d, opacity, thickness } = shape(link, drawn, width, pointed);
        path.setAttribute("d", d);
        path.setAttribute("stroke-opacity", opacity);
        path.setAttribute("stroke-width", thickness);
        return path;
      }));
    };
    const update = changed => {
      if (![...changed].every(key => ["pointed", "row", "column"].includes(key)) || !drawn) {
        heads.update();
        layOut();
      }
      drawLines();
      const { plane, colours } = drawn, at = selection(state, plane);
      const shade = (side, other, weightOf) => side.shade(other === null ? null : weightOf, colours);
      shade(sides[1], at.row, key => drawnWeight(plane, at.row, key));
      shade(sides[0], at.column, row => drawnWeight(plane, row, at.column));
      sides[0].select(at.row, state.row);
      sides[1].select(at.column, state.column);
      readout.replaceChildren(...describe(plane, at).nodes);
    };
    const observer = new ResizeObserver(() => drawn && drawLines());
    observer.observe(stage);
    update(new Set(["view"]));
    return { update, destroy: () => observer.disconnect(),
      figure: () => figure(drawn, state, themeColours(payload, state)) };
  },
};

/** At most MOST_TOKENS indices around the selected one. */
function around(indices, chosen) {
  const at = Math.max(0, indices.indexOf(chosen)),
    first = Math.max(0, Math.min(at - MOST_TOKENS / 2, indices.length - MOST_TOKENS));
  return indices.slice(first, first + MOST_TOKENS);
}

/** The links { row, column, weight } of the largest weights, largest first. */
function strongest(plane, rows, columns) {
  const found = [];
  for (const row of rows)
    for (const column of columns) {
      const weight = drawnWeight(plane, row, column);
      if (weight >= LEAST) found.push({ row, column, weight });
    }
  found.sort((a, b) => b.weight - a.weight);
  const links = found.slice(0, MOST_LINES);
  links.limited = found.length > MOST_LINES;
  return links;
}

function shape({ row, column, weight }, { rows, columns, colours }, width, pointed) {
  const y = [rows.indexOf(row), columns.indexOf(column)].map(index => (index + 0.5) * ROW),
    strength = (weight / colours.peak) ** colours.power;
  const lit = !pointed
    || ((pointed.row === null || pointed.row === row) && (pointed.column === null || pointed.column === column));
  return {
    d: `M0,${y[0]} C${width / 2},${y[0]} ${width / 2},${y[1]} ${width},${y[1]}`,
    opacity: lit ? Math.max(0.06, strength).toFixed(3) : 0.03,
    thickness: (0.75 + 3 * strength).toFixed(2),
  };
}

/** A column of tokens: queries on the left or keys on the right. */
function column(stage, side, state) {
  const heading = element("span", "", { className: "label", id: `${side}-label` });
  const group = element("div", "", { className: `side ${side}`, id: side, role: "listbox" });
  group.setAttribute("aria-labelledby", heading.id);
  const box = element("div", "", { className: "column" }, heading, group);
  stage.append(box);
  const at = index => side === "query" ? { row: index, column: null } : { row: null, column: index };
  listbox(group,
    { pointed: index => state.set({ pointed: at(index) }),
      chosen: index => pin(state, at(index).row, at(index).column) });
  group.addEventListener("pointerleave", () => state.set({ pointed: null }));
  return {
    group: box,
    fill(name, tokens, indices, all) {
      heading.textContent = indices.length < all ? `${name} (${indices[0] + 1}–${indices.at(-1) + 1} of ${all})` : name;
      group.replaceChildren(...indices.map(index => {
        const cell = option(index, ...spelled(tokens[index]));
        cell.dir = "auto";
        return cell;
      }));
    },
    shade(weightOf, colours) {
      for (const cell of group.children) {
        const { css, text } = colours.colour(weightOf ? weightOf(Number(cell.dataset.index)) : 0);
        Object.assign(cell.style, { background: weightOf ? css : "", color: weightOf ? text : "" });
      }
    },
    select(index, pinnedIndex) {
      mark(group, index);
      for (const cell of group.children) cell.classList.toggle("pinned",
        pinnedIndex !== null && Number(cell.dataset.index) === pinnedIndex);
    },
  };
}

function figure({ plane, rows, columns, links, colours }, state, { ink, ramp }) {
  const left = 170, width = 2 * left + GAP, top = 8, stroke = ramp[ramp.length - 3];
  const label = (index, tokens, x, anchor, place) =>
    ({ type: "text", x, y: top + (place + 0.5) * ROW, text: clipped(visible(tokens[index]), 24), size: 13, anchor,
      fill: ink });
  const pointed = state.row !== null || state.column !== null ? state : null;
  const paths = links.map(link => {
    const { d, opacity, thickness } = shape(link, { rows, columns, colours }, GAP, pointed);
    const moved = d.replace(/([\d.]+),([\d.]+)/g, (_, x, y) => `${Number(x) + left},${Number(y) + top}`);
    return { type: "path", d: moved, stroke, opacity, width: thickness };
  });
  return {
    width, height: 2 * top + Math.max(rows.length, columns.length) * ROW,
    items: [...paths, ...rows.map((row, i) => label(row, plane.rowTokens, left - 8, "end", i)),
      ...columns.map((key, i) => label(key, plane.columnTokens, left + GAP + 8, "start", i))],
  };
}
