// Pointer, wheel and keyboard on a canvas of cells: point at cells, pin them, pan and zoom.

const DRAG = 5; // pixels before a press becomes a drag
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Listen on a canvas. Its `surface` has `cellAt(x, y)`, `zoomed()`, `zoom(factor, { x, y })`, `pan(x, y)` (whether it
 * moved), `center()`, `selected()` (the marked cell or null), `neighbor(down, across)` (the next cell, made visible)
 * and `redraw()`; cells are objects. `point(cell)` is called with null outside of all cells.
 */
export function gestures(canvas, surface, { point, pinned }) {
  const fingers = new Map(); // pressed pointers: { x, y }
  let dragged = false;
  const position = event => ({ x: event.offsetX, y: event.offsetY });
  const changed = () => { canvas.style.touchAction = surface.zoomed() ? "none" : "pan-y"; surface.redraw(); };
  const leave = () => point(null);

  canvas.addEventListener("pointerdown", event => {
    fingers.set(event.pointerId, position(event));
    dragged = fingers.size > 1;
  });
  canvas.addEventListener("pointermove", event => {
    const before = fingers.get(event.pointerId), now = position(event);
    if (before && fingers.size === 2) pinch(surface, fingers, event.pointerId, now);
    else if (before && surface.zoomed() && (dragged || Math.hypot(now.x - before.x, now.y - before.y) > DRAG))
      surface.pan(before.x - now.x, before.y - now.y);
    else return point(surface.cellAt(now.x, now.y));
    if (!dragged && canvas.isConnected) canvas.setPointerCapture?.(event.pointerId);
    dragged = true;
    fingers.set(event.pointerId, now);
    changed();
  });
  canvas.addEventListener("pointerup", event => {
    fingers.delete(event.pointerId);
    const cell = dragged ? null : surface.cellAt(event.offsetX, event.offsetY);
    if (cell) pinned(cell);
    if (!fingers.size) dragged = false;
  });
  canvas.addEventListener("pointercancel", event => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) surface.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)),
      position(event));
    else if (!surface.zoomed() || !surface.pan(event.deltaX, event.deltaY)) return; // the page scrolls
    event.preventDefault();
    changed();
  }, { passive: false });
  canvas.addEventListener("keydown", event => key(event, surface, { point, pinned, changed }));
}

function pinch(surface, fingers, moved, now) {
  const [other] = [...fingers].filter(([id]) => id !== moved).map(([, at]) => at), before = fingers.get(moved);
  const span = at => Math.hypot(at.x - other.x, at.y - other.y) || 1;
  surface.zoom(span(now) / span(before), { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 });
}

function key(event, surface, { point, pinned, changed }) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const move = MOVES[event.key], factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 1e-9 }[event.key];
  if (move) point(surface.neighbor(...move));
  else if (event.key === "Enter" || event.key === " ") {
    const cell = surface.selected();
    if (cell) pinned(cell);
  } else if (factor) surface.zoom(factor, surface.center());
  else return;
  event.preventDefault();
  event.stopPropagation();
  changed();
}
