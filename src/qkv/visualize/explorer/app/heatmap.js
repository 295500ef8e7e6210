// A heat map on a canvas with pan and zoom; only the visible tiles of the needed level of detail are painted.

import { element, quotation } from "./dom.js";
import { axes, LABELLED, MARGIN } from "./axes.js";
import { gestures } from "./gestures.js";
import { number, visible } from "./text.js";
import { layOut, surfaceOf } from "./viewport.js";
import { drawnWeight, paint, whole } from "./weights.js";

const TILE = 256, MOST_TILES = 96; // 256 x 256 pixels each: at most 24 MiB

/**
 * Create a heat map in a container. `point(row, column)` is called with the token indices under the pointer (null
 * outside), `pinned(row, column)` for a click or Enter. `show(plane, scale)` draws, `select({ row, column })` marks.
 */
export function heatMap(container, { label, point, pinned }) {
  const canvas = element("canvas", "", { className: "map", tabIndex: 0, role: "application", ariaLabel: label });
  canvas.setAttribute("aria-roledescription", "heat map");
  const marks = element("canvas", "", { className: "marks" }),
    tip = element("div", "", { className: "tip", hidden: true });
  const stage = element("div", "", { className: "stage" }, canvas, marks, tip);
  container.append(stage);
  const view = { left: 0, top: 0, cell: 1, fit: 1, x: 0, y: 0, width: 0, height: 0 };
  const map = { plane: null, scale: null, at: { row: null, column: null }, view, tiles: new Map(), frame: 0,
    names: null };

  const drawNow = () => {
    map.frame = 0;
    draw(canvas, map);
    drawMarks(marks, map);
  };
  const redraw = () => { map.frame ||= requestAnimationFrame(drawNow); };
  const resize = () => { if (map.plane && layOut(stage, [canvas, marks], map)) drawNow(); }; // resizing clears a canvas
  const observer = new ResizeObserver(resize);
  observer.observe(container);

  gestures(canvas, surfaceOf(map, redraw), {
    point: cell => point(cell?.row ?? null, cell?.column ?? null),
    pinned: cell => pinned(cell.row, cell.column),
  });

  return {
    view, canvas, tip, redraw, plane: () => map.plane, scale: () => map.scale,
    show(plane, scale) {
      if (map.plane !== plane) Object.assign(map, { names: null, fresh: true });
      if (map.plane !== plane || map.scale?.key !== scale.key) map.tiles.clear();
      Object.assign(map, { plane, scale });
      resize();
    },
    select(at, tipped) {
      map.at = at;
      if (map.plane) drawMarks(marks, map);
      showTip(tip, stage, map, tipped);
    },
    destroy: () => observer.disconnect(),
  };
}

function draw(canvas, map) {
  const { plane, view, names } = map, context = canvas.getContext("2d"), ratio = devicePixelRatio;
  if (!plane) return;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  drawTiles(context, map, ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  names.draw(context, plane, view);
}

function drawTiles(context, map, ratio) {
  const { plane, view } = map, size = view.cell * ratio;
  const detail = Math.max(0, Math.ceil(-Math.log2(size) - 1e-9));
  const height = Math.ceil(plane.height / 2 ** detail), width = Math.ceil(plane.width / 2 ** detail);
  const pixel = size * 2 ** detail, left = Math.round(view.left * ratio), top = Math.round(view.top * ratio);
  const x0 = left - view.x * size, y0 = top - view.y * size; // where cell 0, 0 is
  context.save();
  context.beginPath();
  context.rect(left, top, context.canvas.width - left, context.canvas.height - top);
  context.clip();
  if (plane.masked) drawHatch(context, left, top, Math.min(context.canvas.width, x0 + plane.width * size) - left,
    Math.min(context.canvas.height, y0 + plane.height * size) - top, ratio);
  context.imageSmoothingEnabled = false;
  const range = (from, to, cells) =>
    [Math.max(0, Math.floor(from / pixel / TILE)), Math.min(Math.ceil(cells / TILE), Math.ceil(to / pixel / TILE))];
  const [firstColumn, lastColumn] = range(left - x0, context.canvas.width - x0, width);
  const [firstRow, lastRow] = range(top - y0, context.canvas.height - y0, height);
  for (let i = firstRow; i < lastRow; i++)
    for (let j = firstColumn; j < lastColumn; j++) {
      const tile = tileAt(map, detail, { height, width }, i, j);
      const x = Math.round(x0 + j * TILE * pixel), y = Math.round(y0 + i * TILE * pixel);
      const right = Math.round(x0 + (j * TILE + tile.width) * pixel),
        bottom = Math.round(y0 + (i * TILE + tile.height) * pixel);
      context.drawImage(tile, x, y, right - x, bottom - y);
    }
  context.restore();
}

/** Faint diagonal lines beneath the tiles, which are transparent where cells are masked. */
function drawHatch(context, left, top, width, height, ratio) {
  const style = getComputedStyle(context.canvas), gap = 6 * ratio;
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  Object.assign(context, { strokeStyle: style.color, globalAlpha: 0.14, lineWidth: ratio });
  context.beginPath();
  for (let x = left - height; x < left + width; x += gap) {
    context.moveTo(x, top + height);
    context.lineTo(x + height, top);
  }
  context.stroke();
  context.restore();
}

function tileAt(map, detail, whole, i, j) {
  const key = `${detail} ${i} ${j}`;
  let tile = map.tiles.get(key);
  map.tiles.delete(key); // re-inserted as the last one used
  if (!tile) {
    const part = { top: i * TILE, left: j * TILE, height: Math.min(TILE, whole.height - i * TILE),
      width: Math.min(TILE, whole.width - j * TILE) };
    tile = paint({ ...part, values: map.plane.read(detail, part) }, map.scale);
  }
  map.tiles.set(key, tile);
  if (map.tiles.size > MOST_TILES) map.tiles.delete(map.tiles.keys().next().value);
  return tile;
}

/** Frame the selected row and column. */
function drawMarks(canvas, { plane, view, at }) {
  if (!plane) return;
  const context = canvas.getContext("2d"), ratio = devicePixelRatio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, view.width, view.height);
  context.save();
  context.beginPath();
  context.rect(view.left - 1.5, view.top - 1.5, view.width, view.height);
  context.clip();
  context.strokeStyle = getComputedStyle(canvas).color;
  const size = Math.max(view.cell, 1), i = plane.rows.indexOf(at.row), j = plane.columns.indexOf(at.column);
  const wide = Math.min(view.width - view.left, plane.width * view.cell),
    high = Math.min(view.height - view.top, plane.height * view.cell);
  if (i >= 0) context.strokeRect(view.left - 0.5, view.top + (i - view.y) * view.cell - 0.5, wide, size);
  if (j >= 0) context.strokeRect(view.left + (j - view.x) * view.cell - 0.5, view.top - 0.5, size, high);
  context.restore();
}

function showTip(tip, stage, { plane, view, at }, shown) {
  tip.hidden = !shown || at.row === null || at.column === null;
  if (tip.hidden) return;
  const [query, key] = [plane.rowTokens[at.row], plane.columnTokens[at.column]].map(each => quotation(visible(each)));
  tip.replaceChildren(...plane.masked?.(at.row, at.column) ? [key, " is masked for ", query]
    : [query, " attends to ", key, ` ${number(plane.at(at.row, at.column))}`]);
  placeTip(tip, stage, view.left + (plane.columns.indexOf(at.column) + 1 - view.x) * view.cell,
    view.top + (plane.rows.indexOf(at.row) - view.y) * view.cell);
}

/** Move a tip to the upper right of a point of its stage. */
export function placeTip(tip, stage, x, y) {
  const limit = stage.clientWidth - tip.offsetWidth, above = y - tip.offsetHeight - 6;
  tip.style.transform = `translate(${Math.max(0, Math.min(x + 8, limit))}px, ${Math.max(-tip.offsetHeight, above)}px)`;
}

/** Drawing of a heat map for export, without the limits of the screen. */
export function heatMapFigure(plane, scale, colors) {
  const names = axes(plane), cell = Math.max(1, Math.min(18, 1600 / Math.max(plane.width, plane.height)));
  const { left, top } = cell >= LABELLED ? names.margins(Infinity, plane, cell) : { left: MARGIN, top: MARGIN };
  const [width, height] = [plane.width * cell, plane.height * cell];
  const items = plane.width * plane.height <= 10000
    ? cells(plane, scale, cell, left, top)
    : [{ type: "image", x: left, y: top, w: width, h: height, canvas: paint(whole(plane, detailFor(plane)), scale) }];
  return { width: left + width + MARGIN, height: top + height + MARGIN,
    items: [...items, ...names.items(plane, { left, top, cell }, colors.ink)] };
}

/** The level of detail at which a plane has at most 2048 rows and columns. */
const detailFor = plane => Math.max(0, Math.ceil(Math.log2(Math.max(plane.width, plane.height) / 2048)));

function cells(plane, scale, cell, left, top) {
  return plane.rows.flatMap((row, i) => plane.columns.flatMap((column, j) =>
    plane.masked?.(row, column) ? [] : [{
      type: "rect", x: left + j * cell, y: top + i * cell, w: cell, h: cell,
      fill: scale.color(drawnWeight(plane, row, column)).css,
    }]));
}
