// Images on a canvas, colored by the attention to their cells.

import { colorScale } from "./color.js";
import { exampleOf, scaleFor, scaleNote } from "./context.js";
import { element, quotation } from "./dom.js";
import { visible } from "./text.js";
import { bytes } from "./weights.js";

const SHADE = [0, 110, 255]; // saturated and of medium lightness: distinct from dark and light grays
const STRONGEST = 0.8; // opacity at the end of the scale, so that the image stays visible
const BLACK = 48, WHITE = 224; // of the gray image, so that the color is visible over its darkest and lightest pixels
const LEAST_PEAK = 4; // times the weight of each cell if all were equal, so that even weights are less than full color
const GRAY = (BLACK + WHITE) / 2; // of the image beneath the colors of the legend

const LEAST = 420, LARGEST = 720; // pixels of the longer side on the page: of small images, and of large ones
const GAP = 24; // between two images, as in style.css

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const hex = values => `#${values.map(value => Math.round(value).toString(16).padStart(2, "0")).join("")}`;
const RAMP = [hex([GRAY, GRAY, GRAY]), hex(SHADE.map(value => STRONGEST * value + (1 - STRONGEST) * GRAY))];

/** The color scale of a head over an image, from 0 to at least LEAST_PEAK times the even weight. */
export function imageScale(payload, state, map, head) {
  const { picture } = exampleOf(payload, state), { peak, curve } = scaleFor(payload, state, map, head);
  return overlayScale(picture, peak, curve);
}

/** The color scale over an image, given the largest weight. */
export const overlayScale = ({ grid: [down, across] }, peak, curve) =>
  colorScale(RAMP, Math.max(peak, Math.min(1, LEAST_PEAK / (down * across))), curve);

/** The color scale over an image of scores that are not weights. */
export const scoreScale = (peak, curve) => colorScale(RAMP, peak, curve);

/** How the color covers an image, for the legend, which shows it over a medium gray. */
export const COVER = `the image is in gray, under 0 to ${100 * STRONGEST} % color`;

/** What the scale covers, for its legend. */
export const imageNote = (payload, state, several) =>
  [scaleNote(payload, state, several), COVER].filter(Boolean).join("; ");

/** Color each cell of an image by its weight, `weightOf(cell)`. */
export function drawOverlay(context, { width, height, grid: [down, across] }, size, weightOf, { peak, power }) {
  const wide = width * size / across, high = height * size / down;
  for (let i = 0; i < down * across; i++) {
    const strength = Math.min(1, weightOf(i) / peak) ** power;
    context.fillStyle = `rgba(${SHADE}, ${STRONGEST * strength})`;
    context.fillRect(i % across * wide, Math.floor(i / across) * high, wide, high);
  }
}

/** Mark a rectangle. */
export function frame(context, x, y, width, height) {
  for (const [line, color] of [[4, "#fff"], [2, "#000"]])
    Object.assign(context, { lineWidth: line, strokeStyle: color }).strokeRect(x, y, width, height);
}

// Images as canvases, those that are being decoded, and the last drawing of each canvas.
const decoded = new WeakMap(), pending = new WeakMap(), requested = new WeakMap();

/** Decode an image of the payload once, as canvases { color, gray }. */
async function decode(picture) {
  const { width, height, type, values } = picture;
  const bitmap = await createImageBitmap(new Blob([bytes(values)], { type }));
  const [color, gray] = [0, 1].map(() => element("canvas", "", { width, height }));
  for (const canvas of [color, gray]) canvas.getContext("2d").drawImage(bitmap, 0, 0);
  const context = gray.getContext("2d");
  Object.assign(context, { globalCompositeOperation: "saturation", fillStyle: "#000" }).fillRect(0, 0, width, height);
  // Mixed with a gray, black becomes BLACK and white WHITE.
  const share = 1 - (WHITE - BLACK) / 255, tone = Math.round(BLACK / share);
  Object.assign(context, { globalCompositeOperation: "source-over", globalAlpha: share,
    fillStyle: `rgb(${tone}, ${tone}, ${tone})` }).fillRect(0, 0, width, height);
  decoded.set(picture, { color, gray });
}

/** Pixels of a canvas per pixel of an image whose longer side fits into `room`; small images are enlarged. */
export const scaleToFit = ({ width, height }, room) => {
  const longer = Math.max(width, height);
  return Math.min(room, LARGEST, Math.max(LEAST, longer)) / longer;
};

/** The room of each of two images next to each other, or of one below the other in a narrow window. */
export const roomFor = ({ clientWidth }) => clientWidth >= 2 * LEAST + GAP ? (clientWidth - GAP) / 2 : clientWidth;

/**
 * Draw an image on a canvas, in color or gray, scaled, and call `over(context)` to draw on it. The canvas has its size
 * at once, and is busy until the image is decoded.
 */
export function drawImage(canvas, picture, scale, { gray = false, over = () => {} } = {}) {
  const ratio = devicePixelRatio, [width, height] = [picture.width * scale, picture.height * scale];
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const draw = () => {
    if (requested.get(canvas) !== draw) return; // something else was drawn since
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    Object.assign(context, { imageSmoothingEnabled: scale < 2, imageSmoothingQuality: "high" });
    context.drawImage(decoded.get(picture)[gray ? "gray" : "color"], 0, 0, width, height);
    over(context);
    canvas.ariaBusy = "false";
  };
  requested.set(canvas, draw);
  if (decoded.has(picture)) return draw();
  canvas.ariaBusy = "true";
  if (!pending.has(picture)) pending.set(picture, decode(picture));
  pending.get(picture).then(draw);
}

/** The canvases side by side, below their titles, for SVG and PNG. */
export function imageFigure(canvases, titles, { ink }) {
  let x = 8;
  const items = canvases.flatMap((canvas, i) => {
    const at = x;
    x += canvas.clientWidth + 16;
    return [{ type: "text", x: at, y: 14, text: titles[i], size: 12, anchor: "start", fill: ink },
      { type: "image", x: at, y: 28, w: canvas.clientWidth, h: canvas.clientHeight, canvas }];
  });
  return { width: x - 8, height: 36 + canvases[0].clientHeight, items };
}

/** The name of a patch, "row 2, column 2", or of another token, in quotation marks. */
export function patchName(token) {
  const [, row, column] = /^(\d+),(\d+)$/.exec(token) ?? [];
  return row ? element("b", `row ${row}, column ${column}`) : quotation(visible(token));
}

/** The words of a description of patches. */
export const PATCHES = { rowName: patchName, columnName: patchName };

/** Point at patches of a grid and pin them: `point(row)` and `pinned(row)`, where row 0 is the class token. */
export function listenPatches(canvas, gridOf, rowOf, { point, pinned }) {
  const clamp = (value, count) => Math.min(count - 1, Math.max(0, value));
  const patch = (i, j) => {
    const [down, across] = gridOf();
    return 1 + clamp(i, down) * across + clamp(j, across);
  };
  const under = event => {
    const [down, across] = gridOf();
    return patch(Math.floor(event.offsetY / canvas.clientHeight * down),
      Math.floor(event.offsetX / canvas.clientWidth * across));
  };
  canvas.addEventListener("pointermove", event => point(under(event)));
  canvas.addEventListener("click", event => pinned(under(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("keydown", event => {
    const [down, across] = gridOf(), move = MOVES[event.key], at = rowOf() - 1, inside = at >= 0 && at < down * across;
    if (!move) return;
    event.preventDefault();
    point(inside ? patch(Math.floor(at / across) + move[0], at % across + move[1]) : 1);
  });
}
