// Heat maps stacked over one time axis, of steps or seconds: they share its zoom and the pointer.

import { fontOf, isLabelled, shortened, stepOf } from "./axes.js";
import { element } from "./dom.js";
import { drawItem } from "./export.js";
import { gestures } from "./gestures.js";
import { placeTip } from "./heatmap.js";
import { paint } from "./weights.js";

const TITLE = 22, GAP = 8, AXIS = 40, RIGHT = 16, FONT = 12; // pixels
const LABELLED = 10; // pixels of a row from which on each one has a label
const MOST_ZOOMED = 48; // pixels of a column
const SHADE = "61, 107, 255", WRONG = "#d55e00";

/**
 * Create the panels in a container. `show(panels, axis)` draws them. A panel is { name, labels (of its rows),
 * rowHeight, start, step, columns, values, scale, dots }: column j covers the time from start + j * step on, `values`
 * are in steps, row by row, and `dots` are [row, column] pairs to mark. The axis is { name, from, to, unit (smallest
 * distance of ticks), first (its label at 0), widest (pixels of one second or step) }.
 * `point(cell)` and `pinned(cell)` get a cell { panel, row, column }; `tell(cell)` returns nodes for its tip.
 * `select({ cell, time, rows, shade })` marks a cell with a tip, a time [from, to], rows [panel, row], and shades the
 * columns { panel, start, step, strengths } of a panel.
 */
export function timeline(container, { label, tell, point, pinned }) {
  const canvas = element("canvas", "", { className: "map", tabIndex: 0, role: "application", ariaLabel: label });
  canvas.setAttribute("aria-roledescription", "heat maps over time");
  const marks = element("canvas", "", { className: "marks" }),
    tip = element("div", "", { className: "tip", hidden: true });
  const stage = element("div", "", { className: "stage" }, canvas, marks, tip);
  container.append(stage);
  const map = { panels: [], axis: null, from: 0, to: 1, at: {}, frame: 0, left: 0, plot: 1, tops: [], height: 0 };

  const drawNow = () => {
    map.frame = 0;
    drawItems(canvas, items(map, colors(canvas)));
    drawMarks(marks, map);
    showTip();
  };
  const redraw = () => { map.frame ||= requestAnimationFrame(drawNow); };
  const showTip = () => {
    const { cell } = map.at;
    tip.hidden = !cell;
    if (tip.hidden) return;
    tip.replaceChildren(...tell(cell));
    const { x, y } = cornerOf(map, cell);
    placeTip(tip, stage, x, y);
  };
  const resize = () => {
    if (!map.axis || !stage.clientWidth) return;
    layOut(map, stage.clientWidth);
    for (const each of [canvas, marks]) size(each, map.left + map.plot + RIGHT, map.height);
    drawNow();
  };
  const observer = new ResizeObserver(resize);
  observer.observe(container);
  gestures(canvas, surfaceOf(map, redraw), { point, pinned });

  return {
    canvas, tip, cornerOf: cell => cornerOf(map, cell),
    show(panels, axis) {
      const same = map.axis && map.axis.from === axis.from && map.axis.to === axis.to;
      Object.assign(map, { panels, axis }, same ? {} : { from: axis.from, to: axis.to });
      resize();
    },
    select(at) {
      map.at = at;
      drawMarks(marks, map);
      showTip();
    },
    figure: () => ({ width: map.left + map.plot + RIGHT, height: map.height, items: items(map, colors(canvas)) }),
    destroy: () => observer.disconnect(),
  };
}

function size(canvas, width, height) {
  Object.assign(canvas, { width: Math.round(width * devicePixelRatio), height: Math.round(height * devicePixelRatio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

/** Choose the margin of the labels, the width of the plots and the top of each panel. */
function layOut(map, room) {
  const { panels, axis } = map, measure = document.createElement("canvas").getContext("2d");
  measure.font = fontOf(FONT);
  let widest = 0;
  for (const panel of panels) {
    panel.clipped ??= panel.labels.map(text => text && shortened(measure, text));
    for (const each of panel.clipped) widest = Math.max(widest, each.width ?? 0);
  }
  map.left = Math.min(Math.ceil(widest) + 12, room / 3);
  map.plot = Math.max(40, Math.min(room - map.left - RIGHT, axis.widest * (axis.to - axis.from)));
  let top = 0;
  map.tops = panels.map(panel => {
    const first = top + TITLE;
    top = first + panel.labels.length * panel.rowHeight + GAP;
    return first;
  });
  map.height = top - GAP + AXIS;
}

const span = map => map.to - map.from;
const across = (map, time) => map.left + (time - map.from) / span(map) * map.plot;
const timeOf = ({ start, step }, column) => start + column * step;

/** The upper right corner of a cell. */
function cornerOf(map, { panel, row, column }) {
  const shown = map.panels[panel];
  return { x: across(map, timeOf(shown, column + 1)), y: map.tops[panel] + row * shown.rowHeight,
    w: shown.step / span(map) * map.plot, h: shown.rowHeight };
}

const colors = canvas => ({ ink: getComputedStyle(canvas).color,
  paper: getComputedStyle(document.body).backgroundColor });

/** The visible columns of a panel as an image: the largest value of the columns of each pixel. */
function imageOf(map, index) {
  const panel = map.panels[index], rows = panel.labels.length;
  const column = time => Math.min(panel.columns, Math.max(0, (time - panel.start) / panel.step));
  const first = Math.floor(column(map.from)), last = Math.ceil(column(map.to));
  const factor = Math.max(1, Math.floor((last - first) / (map.plot * devicePixelRatio)));
  const width = Math.ceil((last - first) / factor);
  if (!width || !rows) return [];
  const key = [first, last, factor, panel.scale.key].join();
  if (panel.painted?.key !== key) {
    const values = new Float32Array(rows * width);
    for (let i = 0; i < rows; i++)
      for (let j = first; j < last; j++) {
        const at = i * width + Math.floor((j - first) / factor), value = panel.values[i * panel.columns + j];
        if (value > values[at]) values[at] = value;
      }
    panel.painted = { key, canvas: paint({ height: rows, width, values }, panel.scale) };
  }
  const x = across(map, timeOf(panel, first));
  return [{ type: "image", x, y: map.tops[index], w: across(map, timeOf(panel, first + width * factor)) - x,
    h: rows * panel.rowHeight, canvas: panel.painted.canvas }];
}

/** Everything that is drawn, as items of a figure. */
function items(map, { ink, paper }) {
  const { panels, axis, left, plot, tops, height } = map;
  const text = (x, y, text, anchor, { bold = false, size = FONT } = {}) =>
    ({ type: "text", x, y, text, size, anchor, fill: ink, bold });
  const drawn = panels.flatMap((panel, index) => [...imageOf(map, index), ...(panel.dots ?? []).map(([row, column]) => {
    const { x, y, w, h } = cornerOf(map, { panel: index, row, column }), side = Math.max(3, 0.45 * Math.min(w, h));
    return { type: "rect", x: x - (w + side) / 2, y: y + (h - side) / 2, w: side, h: side, fill: WRONG };
  })]);
  // What is left and right of the visible time is covered.
  drawn.push({ type: "rect", x: 0, y: 0, w: left, h: height, fill: paper },
    { type: "rect", x: left + plot, y: 0, w: plot + RIGHT, h: height, fill: paper });
  panels.forEach((panel, index) => {
    drawn.push(text(left, tops[index] - TITLE / 2, panel.name, "start", { bold: true }));
    const every = panel.rowHeight >= LABELLED ? 1 : stepOf(14 / panel.rowHeight);
    const size = every > 1 ? FONT : Math.min(FONT, panel.rowHeight - 2);
    let free = 0; // the first row whose label does not overlap the previous one
    for (let row = 0; row < panel.labels.length; row++) {
      if (row < free || !panel.clipped[row] || !isLabelled(panel.labels, row, every)) continue;
      drawn.push(text(left - 6, tops[index] + (row + 0.5) * panel.rowHeight, panel.clipped[row].text, "end", { size }));
      free = row + size / panel.rowHeight;
    }
  });
  const tick = stepOf(span(map) / plot * 56, axis.unit), decimals = Math.max(0, Math.ceil(-Math.log10(tick)));
  const bottom = height - AXIS, shift = axis.first ? axis.unit / 2 : 0; // steps are labeled in their middle
  for (let n = Math.ceil((map.from + axis.first) / tick - 1e-9); n * tick <= map.to + axis.first + 1e-9; n++) {
    const x = across(map, n * tick - axis.first + shift);
    if (x < left - 1 || x > left + plot + 1) continue;
    drawn.push({ type: "rect", x: x - 0.5, y: bottom, w: 1, h: 4, fill: ink },
      text(x, bottom + 12, (n * tick).toFixed(decimals), "middle"));
  }
  drawn.push(text(left + plot / 2, bottom + 29, axis.name, "middle"));
  return drawn;
}

function drawItems(canvas, drawn) {
  const context = canvas.getContext("2d"), ratio = devicePixelRatio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  for (const item of drawn) drawItem(context, item);
}

function drawMarks(canvas, map) {
  const { left, plot, tops, panels, height, at } = map, context = canvas.getContext("2d"), ratio = devicePixelRatio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.save();
  context.beginPath();
  context.rect(left - 1, 0, plot + 2, height);
  context.clip();
  if (at.shade) shade(context, map, at.shade);
  context.strokeStyle = getComputedStyle(canvas).color;
  if (at.time) {
    const x = across(map, at.time[0]), wide = Math.max(1, across(map, at.time[1]) - x);
    panels.forEach((panel, index) => context.strokeRect(x + 0.5, tops[index] - 0.5, wide - 1,
      panel.labels.length * panel.rowHeight + 1));
  }
  for (const [panel, row] of at.rows ?? [])
    context.strokeRect(left - 0.5, tops[panel] + row * panels[panel].rowHeight - 0.5, plot + 1,
      panels[panel].rowHeight + 1);
  context.restore();
}

function shade(context, map, { panel, start, step, strengths }) {
  const top = map.tops[panel], high = map.panels[panel].labels.length * map.panels[panel].rowHeight;
  strengths.forEach((strength, column) => {
    const x = across(map, start + column * step), next = across(map, start + (column + 1) * step);
    context.fillStyle = `rgba(${SHADE}, ${strength})`;
    context.fillRect(x, top, next - x, high);
  });
}

/** What gestures need of the panels. */
function surfaceOf(map, redraw) {
  const clamp = from => {
    const length = span(map), { axis } = map;
    map.from = Math.min(Math.max(axis.from, from), axis.to - length);
    map.to = map.from + length;
  };
  const columnAt = (panel, time) => Math.floor((time - panel.start) / panel.step + 1e-9);
  return {
    redraw,
    cellAt(x, y) {
      const panel = map.panels.findIndex((each, index) => y >= map.tops[index]
        && y < map.tops[index] + each.labels.length * each.rowHeight);
      if (panel < 0 || x < map.left || x >= map.left + map.plot) return null;
      const shown = map.panels[panel], column = columnAt(shown, map.from + (x - map.left) / map.plot * span(map));
      return column < 0 || column >= shown.columns ? null
        : { panel, row: Math.floor((y - map.tops[panel]) / shown.rowHeight), column };
    },
    zoomed: () => span(map) < (map.axis.to - map.axis.from) * 0.999,
    zoom(factor, at) {
      const whole = map.axis.to - map.axis.from, share = (at.x - map.left) / map.plot,
        time = map.from + share * span(map);
      const least = Math.min(whole, map.plot / MOST_ZOOMED * Math.min(...map.panels.map(each => each.step)));
      const length = Math.min(whole, Math.max(least, span(map) / factor));
      map.to = map.from + length;
      clamp(time - share * length);
    },
    pan(x) {
      const before = map.from;
      clamp(map.from + x / map.plot * span(map));
      return map.from !== before;
    },
    center: () => ({ x: map.left + map.plot / 2, y: map.height / 2 }),
    selected: () => map.at.cell ?? null,
    neighbor(down, right) {
      const cell = map.at.cell ?? { panel: 0, row: -down, column: -right }, from = map.panels[cell.panel];
      let [panel, row] = [cell.panel, cell.row + down];
      if (row < 0 && panel > 0) row = map.panels[--panel].labels.length - 1;
      else if (row >= from.labels.length && panel < map.panels.length - 1) [panel, row] = [panel + 1, 0];
      const to = map.panels[panel], last = to.columns - 1;
      const column = panel === cell.panel ? cell.column + right : columnAt(to, timeOf(from, cell.column + 0.5));
      const next = { panel, row: Math.min(Math.max(0, row), to.labels.length - 1),
        column: Math.min(Math.max(0, column), last) };
      clamp(Math.min(Math.max(map.from, timeOf(to, next.column + 1) - span(map)), timeOf(to, next.column)));
      return next;
    },
  };
}
