// Labels of the rows and columns of a heat map: tokens where they fit, else their numbers. Tokens that are numbers
// themselves, such as steps, memory locations and seconds, are their own numbers.

import { areCharacters, visible } from "./text.js";

export const LABELLED = 10; // cells of at least this many pixels get tokens as labels
export const MARGIN = 8;
const LONGEST = 110, FONT = 13;
const ROOM = 40; // pixels between two numbers

const context = () => document.createElement("canvas").getContext("2d");
export const fontOf = size => `${size}px ${getComputedStyle(document.body).fontFamily}`;

/** Labels of a plane: `margins(room, plane)` they need, `draw(context, plane, view)`, and `items` for export. */
export function axes(plane) {
  const measure = context();
  measure.font = fontOf(FONT);
  const fitted = tokens => {
    const known = new Map();
    return tokens.map(token => known.get(token) ?? (known.set(token, clip(measure, token)), known.get(token)));
  };
  const rows = fitted(plane.rows.map(row => plane.rowTokens[row]));
  const columns = fitted(plane.columns.map(column => plane.columnTokens[column]));
  const widest = labels => labels.reduce((most, label) => Math.max(most, label.width), 0);
  const characters = areCharacters(columns.map(label => label.text));
  // Where tokens do not fit, their numbers are shown.
  const numbers = measure.measureText(String(plane.rowTokens.length)).width;
  const counts = { rows: numbersOf(plane.rows, plane.rowTokens),
    columns: numbersOf(plane.columns, plane.columnTokens) };
  counts.room = Math.max(ROOM, 12 + counts.columns.reduce((most, { length }) => Math.max(most, length), 0) * 7);
  const sizes = { left: Math.ceil(Math.max(numbers, widest(rows))) + 10, right: Math.ceil(widest(columns)) + 10 };
  const stands = (label, cell) => characters && label.width <= cell;
  return {
    margins(room, shown, given) {
      const cell = given ?? Math.min(32, (room - sizes.left) / shown.width);
      const upright = columns.every(label => stands(label, cell));
      return { left: Math.min(sizes.left, room / 3), top: upright ? FONT + 10 : sizes.right };
    },
    draw: (target, shown, view) => {
      const style = getComputedStyle(target.canvas);
      for (const item of labels(rows, columns, counts, shown, view, stands)) drawText(target, item, style.color);
    },
    items: (shown, view, ink) =>
      labels(rows, columns, counts, shown, { x: 0, y: 0, width: Infinity, height: Infinity, ...view }, stands)
        .map(item => ({ type: "text", fill: ink, ...item })),
  };
}

/** The number of each shown token, as text: the token itself if all are ascending numbers, else its position. */
const numbersOf = (indices, tokens) => {
  const shown = indices.map(index => tokens[index]);
  return areNumbers(shown) ? shown : indices.map(index => String(index + 1));
};

/** Whether texts are numbers in ascending order. */
const areNumbers = texts => texts.every((text, i) =>
  /^\d+(\.\d+)?$/.test(text) && (i === 0 || Number(texts[i - 1]) < Number(text)));

/** Whether the text at an index has a label where one of `every` texts has: those that are multiples of `every`. */
export const isLabelled = (texts, index, every) =>
  (/^\d+$/.test(texts[index]) ? Number(texts[index]) : index) % every === 0;

/** Visible labels as { x, y, text, size, anchor, rotate }. */
function labels(rows, columns, counts, plane, view, stands) {
  const { left, top, cell } = view, tokens = cell >= LABELLED, size = Math.min(FONT, Math.max(9, cell * 0.7));
  const visibleFrom = (offset, room, count) =>
    [Math.max(0, Math.floor(offset)), Math.min(count, Math.ceil(offset + room / cell))];
  const [firstRow, lastRow] = visibleFrom(view.y, view.height - top, plane.height);
  const [firstColumn, lastColumn] = visibleFrom(view.x, view.width - left, plane.width);
  const stepsOf = least => tokens ? 1 : stepOf(least / cell), down = stepsOf(ROOM), across = stepsOf(counts.room);
  const items = [];
  for (let i = firstRow; i < lastRow; i++) {
    const y = top + (i + 0.5 - view.y) * cell;
    if (y >= top && isLabelled(counts.rows, i, down)) items.push({ x: left - 6, y, text: tokens ? rows[i].text : counts.rows[i],
      size: tokens ? size : 11, anchor: "end", rotate: 0 });
  }
  for (let j = firstColumn; j < lastColumn; j++) {
    const x = left + (j + 0.5 - view.x) * cell, upright = !tokens || stands(columns[j], cell);
    const fits = x >= left && (tokens || x < view.width - 14);
    if (fits && isLabelled(counts.columns, j, across)) items.push({
      x, y: top - (upright ? 10 : 6), text: tokens ? columns[j].text : counts.columns[j],
        size: tokens ? size : 11,
      anchor: upright ? "middle" : "start", rotate: upright ? 0 : -90,
    });
  }
  return items;
}

/** The smallest of 1, 2, 5, 10, 20, ... times `unit` that is at least `least`. */
export function stepOf(least, unit = 1) {
  for (let power = unit; ; power *= 10)
    for (const digit of [1, 2, 5]) if (digit * power >= least) return digit * power;
}

const ALIGN = { start: "left", middle: "center", end: "right" };

/** Draw a text item on a canvas. */
export function drawText(target, { x, y, text, size, anchor, rotate = 0, fill, bold }, ink) {
  target.save();
  Object.assign(target, {
    font: `${bold ? "600 " : ""}${fontOf(size)}`, fillStyle: fill ?? ink, textBaseline: "middle",
      textAlign: ALIGN[anchor],
  });
  target.translate(x, y);
  target.rotate(rotate * Math.PI / 180);
  target.fillText(text, 0, 0);
  target.restore();
}

const clip = (measure, token) => shortened(measure, visible(token));

/** A text, shortened to at most `longest` pixels, and its width. */
export function shortened(measure, text, longest = LONGEST) {
  let width = measure.measureText(text).width;
  if (width <= longest) return { text, width };
  const letters = [...text];
  while (letters.length && (width = measure.measureText(`${letters.join("")}…`).width) > longest) letters.pop();
  return { text: `${letters.join("")}…`, width };
}
