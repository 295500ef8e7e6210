// Queries and keys as two columns of tokens, with a line for each large weight.

import { areHeads } from "../address.js";
import { legend } from "../color.js";
import { axisNames, current, describe, exampleOf, scaleFor, scaleNote, selected, themeColors } from "../context.js";
import { element, listbox, mark, option } from "../dom.js";
import { headName, headStrip } from "../heads.js";
import { pin, selection } from "../state.js";
import { clipped, spelled, visible } from "../text.js";
import { drawnWeight, planeOf } from "../weights.js";

const MOST_TOKENS = 160; // of a column, around the selected token
const MOST_LINES = 1500;
const LEAST = 0.01; // weights below are not drawn
const ROW = 26, GAP = 220; // pixels
const SVG = "http://www.w3.org/2000/svg";
const HUES = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22",
  "#17becf"]; // of heads; those of the eleventh are the first ones again

export const lines = {
  name: "lines",
  label: "Lines",
  controls: ["layer", "special", "scale", "curve"],
  keys: { heads: areHeads },

  accepts: (payload, state) => exampleOf(payload, state)?.maps.length > 0 && !exampleOf(payload, state).picture,

  render(container, payload, state) {
    const heads = headStrip(container, payload, state, () => null, head => toggle(payload, state, head));
    const choices = element("fieldset", "", { className: "overlay", id: "overlay" });
    container.append(choices);
    const readout = element("p", "", { id: "readout", ariaLive: "polite" });
    const stage = element("div", "", { className: "bipartite" }), scale = element("div", "", { className: "scale" });
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("aria-hidden", "true");
    const sides = ["query", "key"].map(side => column(stage, side, state));
    sides[0].group.after(svg);
    container.append(readout, stage, scale);
    let drawn = null;

    const layOut = () => {
      const { example, map, plane, scale: colors } = selected(payload, state), at = selection(state, plane);
      const layers = layersOf(payload, state, plane, colors);
      showChoices(choices, map, layers, head => toggle(payload, state, head));
      for (const cell of heads.group.children) {
        const layer = layers.find(({ head, hue }) => hue && head === Number(cell.dataset.index) - 1);
        cell.classList.toggle("overlaid", Boolean(layer));
        cell.style.borderColor = layer?.hue ?? "";
        if (layers.length > 1) cell.ariaSelected = String(Boolean(layer));
      }
      const [rowName, columnName] = axisNames(example, map);
      const rows = around(plane.rows, at.row),
        columns = around(plane.columns, at.column ?? describe(plane, at).strongest[0]);
      sides[0].fill(rowName, plane.rowTokens, rows, plane.rows.length);
      sides[1].fill(columnName, plane.columnTokens, columns, plane.columns.length);
      drawn = { plane, layers, rows, columns, links: strongest(layers, rows, columns) };
      const { links } = drawn, least = links.limited ? Math.max(LEAST, links.at(-1)?.weight ?? 0) : LEAST;
      scale.replaceChildren(layers.length > 1 ? hueLegend(layers, scaleNote(payload, state))
        : legend(colors, scaleNote(payload, state)), element("span",
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
        if (link.layer.hue) path.style.stroke = link.layer.hue;
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
      const { plane, layers } = drawn, at = selection(state, plane);
      sides[1].shade(at.row === null ? null : key => layers.map(each => drawnWeight(each.plane, at.row, key)), layers);
      sides[0].shade(at.column === null ? null : row => layers.map(each => drawnWeight(each.plane, row, at.column)),
        layers);
      sides[0].select(at.row, state.row);
      sides[1].select(at.column, state.column);
      readout.replaceChildren(...layers.length < 2 ? describe(plane, at).nodes : layers.map(({ head, hue, ...each }) =>
        element("div", "", {}, swatch(hue), ` ${headName(head)}: `, ...describe(each.plane, at).nodes)));
    };
    const observer = new ResizeObserver(() => drawn && drawLines());
    observer.observe(stage);
    update(new Set(["view"]));
    return { update, destroy: () => observer.disconnect(),
      figure: () => figure(drawn, state, themeColors(payload, state)) };
  },
};

/** The heads that are overlaid: those of the state, else the selected one unless it is the average. */
function overlaid(payload, state) {
  const { map, head } = current(payload, state);
  const listed = [...new Set((state.heads ?? "").split(" ").filter(word => /^\d+$/.test(word)).map(Number))]
    .filter(each => each < map.heads).sort((a, b) => a - b);
  return listed.length > 1 ? listed : head === "average" ? [] : [head];
}

/** Add a head to the overlaid ones, or remove it. */
function toggle(payload, state, head) {
  const before = overlaid(payload, state), after = before.includes(head) ? before.filter(each => each !== head)
    : [...before, head].sort((a, b) => a - b);
  state.set(after.length > 1 ? { heads: after.join(" ") } : { heads: "", head: after[0] ?? "average" });
}

/** What is drawn: { head, plane, colors, hue } of the selected head, or of each of several heads. */
function layersOf(payload, state, plane, colors) {
  const heads = overlaid(payload, state), { example, map, head } = current(payload, state);
  if (heads.length < 2) return [{ head, plane, colors, hue: "" }];
  return heads.map(each => ({ head: each, plane: planeOf(example, map, each, state.special),
    colors: scaleFor(payload, state, map, each), hue: HUES[each % HUES.length] }));
}

const swatch = hue => {
  const box = element("span", "", { className: "swatch", ariaHidden: "true" });
  box.style.cssText = `display: inline-block; background: ${hue};`;
  return box;
};

/** Checkboxes of the heads to overlay. */
function showChoices(box, map, layers, change) {
  const focused = box.contains(document.activeElement) ? document.activeElement.value : null;
  box.hidden = map.heads < 2;
  box.replaceChildren(element("legend", "Overlay heads"), ...[...Array(map.heads).keys()].map(head => {
    const layer = layers.find(each => each.head === head);
    const input = element("input", "", { type: "checkbox", value: head, checked: Boolean(layer),
      ariaLabel: `Overlay head ${head}` });
    input.addEventListener("change", () => change(head));
    return element("label", "", {}, input, ...layer?.hue ? [swatch(layer.hue)] : [], String(head));
  }));
  if (focused !== null) box.querySelector(`[value="${focused}"]`)?.focus();
}

/** A legend of hues: one per head. */
function hueLegend(layers, note) {
  const { peak } = layers.reduce((a, b) => a.colors.peak >= b.colors.peak ? a : b).colors;
  return element("div", "", { className: "legend hues" }, ...layers.map(({ head, hue }) =>
    element("span", "", { className: "hue" }, swatch(hue), headName(head))),
  element("span", `opaque at a weight of ${peak.toFixed(2)}; ${note}`, { className: "note" }));
}

/** At most MOST_TOKENS indices around the selected one. */
function around(indices, chosen) {
  const at = Math.max(0, indices.indexOf(chosen)),
    first = Math.max(0, Math.min(at - MOST_TOKENS / 2, indices.length - MOST_TOKENS));
  return indices.slice(first, first + MOST_TOKENS);
}

/** The links { row, column, weight, layer } of the largest weights, largest first. */
function strongest(layers, rows, columns) {
  const candidates = [];
  for (const layer of layers)
    for (const row of rows)
      for (const column of columns) {
        const weight = drawnWeight(layer.plane, row, column);
        if (weight >= LEAST) candidates.push({ row, column, weight, layer });
      }
  candidates.sort((a, b) => b.weight - a.weight);
  const links = candidates.slice(0, MOST_LINES);
  links.limited = candidates.length > MOST_LINES;
  return links;
}

function shape({ row, column, weight, layer: { colors } }, { rows, columns }, width, pointed) {
  const y = [rows.indexOf(row), columns.indexOf(column)].map(index => (index + 0.5) * ROW),
    strength = (weight / colors.peak) ** colors.power;
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
    /** Shade the tokens by their weight in each layer: in the colors of the scale, or as stripes of several hues. */
    shade(weightsOf, layers) {
      for (const cell of group.children) {
        const weights = weightsOf ? weightsOf(Number(cell.dataset.index)) : [0], [{ colors, hue }] = layers;
        const { css, text } = colors.color(weights[0]), striped = Boolean(hue);
        Object.assign(cell.style, { background: !weightsOf ? "" : striped ? stripes(weights, layers) : css,
          color: weightsOf && !striped ? text : "" });
      }
    },
    select(index, pinnedIndex) {
      mark(group, index);
      for (const cell of group.children) cell.classList.toggle("pinned",
        pinnedIndex !== null && Number(cell.dataset.index) === pinnedIndex);
    },
  };
}

/** A background of one stripe per head, whose opacity is the weight as a share of the scale, at most 0.6. */
function stripes(weights, layers) {
  const part = 100 / layers.length;
  return `linear-gradient(90deg, ${layers.map(({ hue, colors }, i) => {
    const share = Math.round(60 * Math.min(1, weights[i] / colors.peak) ** colors.power);
    return `color-mix(in srgb, ${hue} ${share}%, transparent) ${i * part}% ${(i + 1) * part}%`;
  })})`;
}

function figure({ plane, layers, rows, columns, links }, state, { ink, ramp }) {
  const named = layers.length > 1, left = 170, width = 2 * left + GAP, top = named ? 32 : 8,
    stroke = ramp[ramp.length - 3];
  const label = (index, tokens, x, anchor, i) =>
    ({ type: "text", x, y: top + (i + 0.5) * ROW, text: clipped(visible(tokens[index]), 24), size: 13, anchor,
      fill: ink });
  const pointed = state.row !== null || state.column !== null ? state : null;
  const paths = links.map(link => {
    const { d, opacity, thickness } = shape(link, { rows, columns }, GAP, pointed);
    const moved = d.replace(/([\d.]+),([\d.]+)/g, (_, x, y) => `${Number(x) + left},${Number(y) + top}`);
    return { type: "path", d: moved, stroke: link.layer.hue || stroke, opacity, width: thickness };
  });
  const names = named ? layers.flatMap(({ head, hue }, i) => [
    { type: "rect", x: 8 + 72 * i, y: 8, w: 10, h: 10, fill: hue },
    { type: "text", x: 22 + 72 * i, y: 13, text: headName(head), size: 12, anchor: "start", fill: ink }]) : [];
  return {
    width: Math.max(width, named ? 16 + 72 * layers.length : 0),
    height: top + 8 + Math.max(rows.length, columns.length) * ROW,
    items: [...names, ...paths, ...rows.map((row, i) => label(row, plane.rowTokens, left - 8, "end", i)),
      ...columns.map((key, i) => label(key, plane.columnTokens, left + GAP + 8, "start", i))],
  };
}
