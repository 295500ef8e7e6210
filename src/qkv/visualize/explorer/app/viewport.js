// The visible part of a heat map: { left, top, width, height, cell, fit, x, y } with the offset x, y counted in cells.

import { axes } from "./axes.js";

const LARGEST_CELL = 32, MOST_ZOOMED = 48;

/** Choose margins, size and the cell size at which the whole map is visible; keeps the zoom of the same map. */
export function layOut(stage, canvases, map) {
  const { plane, view } = map, room = stage.clientWidth, tall = Math.max(320, Math.min(innerHeight * 0.7, 900));
  if (!room) return false;
  map.names ??= axes(plane);
  const { left, top } = map.names.margins(room, plane);
  const fit = Math.max(0.02, Math.min(LARGEST_CELL, (room - left - 1) / plane.width, (tall - top) / plane.height));
  const zoomed = !map.fresh && view.fit ? view.cell / view.fit : 1;
  map.fresh = false;
  Object.assign(view, { left, top, fit, cell: fit * zoomed });
  view.width = Math.min(room, left + Math.ceil(view.cell * plane.width) + 1);
  view.height = Math.min(Math.ceil(tall), top + Math.ceil(view.cell * plane.height) + 1);
  clampView(map);
  const ratio = devicePixelRatio;
  for (const canvas of canvases) {
    Object.assign(canvas, { width: Math.round(view.width * ratio), height: Math.round(view.height * ratio) });
    Object.assign(canvas.style, { width: `${view.width}px`, height: `${view.height}px` });
  }
  return true;
}

/** Keep the offset within the map; x and y count cells. */
function clampView({ plane, view }) {
  const most = (size, room) => Math.max(0, size - room / view.cell);
  view.x = Math.min(Math.max(0, view.x), most(plane.width, view.width - view.left));
  view.y = Math.min(Math.max(0, view.y), most(plane.height, view.height - view.top));
}

/** Zoom by a factor about a point of the canvas. */
function zoom(map, factor, at) {
  const { view } = map, largest = Math.max(MOST_ZOOMED, view.fit);
  const cell = Math.min(largest, Math.max(view.fit, view.cell * factor));
  const [x, y] = [view.x + (at.x - view.left) / view.cell, view.y + (at.y - view.top) / view.cell];
  Object.assign(view, { cell, x: x - (at.x - view.left) / cell, y: y - (at.y - view.top) / cell });
  clampView(map);
}

/** The cell at a point of the canvas, as indices of tokens; null outside. */
function cellAt({ plane, view }, x, y) {
  if (!plane || x < view.left || y < view.top) return null;
  const j = Math.floor(view.x + (x - view.left) / view.cell), i = Math.floor(view.y + (y - view.top) / view.cell);
  return i < plane.height && j < plane.width ? { row: plane.rows[i], column: plane.columns[j] } : null;
}

/** What gestures need of a heat map: `map` has the plane, the view and the marked cell `at`. */
export const surfaceOf = (map, redraw) => ({
  redraw,
  cellAt: (x, y) => cellAt(map, x, y),
  zoomed: () => map.view.cell > map.view.fit * 1.001,
  zoom: (factor, at) => zoom(map, factor, at),
  pan: (x, y) => pan(map, x, y),
  center: () => ({ x: (map.view.left + map.view.width) / 2, y: (map.view.top + map.view.height) / 2 }),
  selected: () => map.at.row !== null && map.at.column !== null ? map.at : null,
  neighbor: (down, across) => neighbor(map, down, across),
});

/** Move the view by pixels; returns whether it moved. */
function pan(map, x, y) {
  const { view } = map, before = [view.x, view.y];
  view.x += x / view.cell;
  view.y += y / view.cell;
  clampView(map);
  return view.x !== before[0] || view.y !== before[1];
}

/** The cell next to the marked one, scrolled into view. */
function neighbor(map, down, across) {
  const { plane, at } = map;
  const step = (shown, index, by) =>
    shown[Math.min(shown.length - 1, Math.max(0, index === null ? 0 : shown.indexOf(index) + by))];
  const cell = { row: step(plane.rows, at.row, down), column: step(plane.columns, at.column, across) };
  reveal(map, cell);
  return cell;
}

function reveal(map, { row, column }) {
  const { plane, view } = map, wide = (view.width - view.left) / view.cell, high = (view.height - view.top) / view.cell;
  const j = plane.columns.indexOf(column), i = plane.rows.indexOf(row);
  view.x = Math.min(Math.max(view.x, j + 1 - wide), j);
  view.y = Math.min(Math.max(view.y, i + 1 - high), i);
  clampView(map);
}
