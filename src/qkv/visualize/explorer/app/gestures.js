// Pointer, wheel and keyboard on a heat map: point at cells, pin them, pan and zoom.

import { cellAt, clampView, zoom } from "./viewport.js";

const DRAG = 5; // pixels before a press becomes a drag
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Listen on the canvas of a heat map; `map` has the plane and the view that the gestures change. */
export function gestures(canvas, map, { redraw, point, pinned, leave }) {
  const fingers = new Map(); // pressed pointers: { x, y }
  let dragged = false;
  const place = event => ({ x: event.offsetX, y: event.offsetY });
  const zoomed = () => map.view.cell > map.view.fit * 1.001;
  const changed = () => { canvas.style.touchAction = zoomed() ? "none" : "pan-y"; redraw(); };

  canvas.addEventListener("pointerdown", event => {
    fingers.set(event.pointerId, place(event));
    dragged = fingers.size > 1;
  });
  canvas.addEventListener("pointermove", event => {
    const before = fingers.get(event.pointerId), now = place(event);
    if (before && fingers.size === 2) pinch(map, fingers, event.pointerId, now);
    else if (before && zoomed() && (dragged || Math.hypot(now.x - before.x, now.y - before.y) > DRAG)) pan(map,
      before.x - now.x, before.y - now.y);
    else return hover(now);
    if (!dragged && canvas.isConnected) canvas.setPointerCapture?.(event.pointerId);
    dragged = true;
    fingers.set(event.pointerId, now);
    changed();
  });
  const hover = ({ x, y }) => {
    const cell = cellAt(map, x, y);
    point(cell?.row ?? null, cell?.column ?? null);
  };
  canvas.addEventListener("pointerup", event => {
    fingers.delete(event.pointerId);
    const cell = dragged ? null : cellAt(map, event.offsetX, event.offsetY);
    if (cell) pinned(cell.row, cell.column);
    if (!fingers.size) dragged = false;
  });
  canvas.addEventListener("pointercancel", event => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) zoom(map, Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)),
      place(event));
    else if (!zoomed() || !pan(map, event.deltaX, event.deltaY)) return; // the page scrolls
    event.preventDefault();
    changed();
  }, { passive: false });
  canvas.addEventListener("keydown", event => key(event, canvas, map, { point, pinned, changed }));
}

/** Move the view by pixels; returns whether it moved. */
function pan(map, x, y) {
  const { view } = map, before = [view.x, view.y];
  view.x += x / view.cell;
  view.y += y / view.cell;
  clampView(map);
  return view.x !== before[0] || view.y !== before[1];
}

function pinch(map, fingers, moved, now) {
  const [other] = [...fingers].filter(([id]) => id !== moved).map(([, at]) => at), before = fingers.get(moved);
  const span = at => Math.hypot(at.x - other.x, at.y - other.y) || 1;
  zoom(map, span(now) / span(before), { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 });
}

function key(event, canvas, map, { point, pinned, changed }) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const { plane, at, view } = map, move = MOVES[event.key],
    factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 1e-9 }[event.key];
  const step = (shown, index, by) =>
    shown[Math.min(shown.length - 1, Math.max(0, index === null ? 0 : shown.indexOf(index) + by))];
  if (move) {
    const cell = { row: step(plane.rows, at.row, move[0]), column: step(plane.columns, at.column, move[1]) };
    reveal(map, cell);
    point(cell.row, cell.column);
  } else if (event.key === "Enter" || event.key === " ") {
    if (at.row !== null && at.column !== null) pinned(at.row, at.column);
  } else if (factor) zoom(map, factor, { x: (view.left + view.width) / 2, y: (view.top + view.height) / 2 });
  else return;
  event.preventDefault();
  event.stopPropagation();
  changed();
}

/** Scroll the view so that a cell is visible. */
function reveal(map, { row, column }) {
  const { plane, view } = map, across = (view.width - view.left) / view.cell,
    down = (view.height - view.top) / view.cell;
  const j = plane.columns.indexOf(column), i = plane.rows.indexOf(row);
  view.x = Math.min(Math.max(view.x, j + 1 - across), j);
  view.y = Math.min(Math.max(view.y, i + 1 - down), i);
  clampView(map);
}
