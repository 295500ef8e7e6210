// Export of a figure as SVG or PNG. A figure is { width, height, items } with items of type rect, path, text and image.

import { drawText } from "./axes.js";
import { LONGEST_TEXT, visible } from "./text.js";

const FONT = "system-ui, sans-serif", TRANSPARENT = "rgba(0, 0, 0, 0)";
const escaped = text => String(text).replace(/[&<>"'\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, c =>
  ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c] ?? "\ufffd");

const WRITERS = {
  rect: ({ x, y, w, h, fill, stroke = "none" }) =>
    `<rect x="${x}" y="${y}" width="${w}" height="${h}" fill="${fill}" stroke="${stroke}"/>`,
  path: ({ d, stroke, width = 1, opacity = 1 }) =>
    `<path d="${d}" fill="none" stroke="${stroke}" stroke-width="${width}" stroke-opacity="${opacity}"/>`,
  text: ({ x, y, text, size, anchor, rotate = 0, fill, bold }) =>
    `<text transform="translate(${x} ${y}) rotate(${rotate})" font-size="${size}"${bold ? ' font-weight="600"' : ""} `
    + `text-anchor="${anchor}" dominant-baseline="central" fill="${fill}" xml:space="preserve">${escaped(text)}</text>`,
  image: ({ x, y, w, h, canvas }) =>
    `<image x="${x}" y="${y}" width="${w}" height="${h}" preserveAspectRatio="none" style="image-rendering: pixelated" `
    + `href="${canvas.toDataURL()}"/>`,
};

/** The text of an SVG file. */
export function toSvg({ width, height, items }, { title, paper }) {
  const all = [{ type: "rect", x: 0, y: 0, w: width, h: height, fill: paper }, ...items];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" `
    + `font-family="${FONT}" role="img"><title>${escaped(title)}</title>\n`
    + `${all.map(item => WRITERS[item.type](item)).join("\n")}\n</svg>\n`;
}

const DRAWERS = {
  rect: (context, { x, y, w, h, fill, stroke }) => {
    context.fillStyle = fill;
    context.fillRect(x, y, w, h);
    if (stroke) Object.assign(context, { strokeStyle: stroke, lineWidth: 1 }).strokeRect(x, y, w, h);
  },
  path: (context, { d, stroke, width = 1, opacity = 1 }) => {
    Object.assign(context, { strokeStyle: stroke, lineWidth: width, globalAlpha: opacity }).stroke(new Path2D(d));
    context.globalAlpha = 1;
  },
  text: (context, item) => drawText(context, item, item.fill),
  image: (context, { x, y, w, h, canvas }) => {
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, x, y, w, h);
  },
};

/** The shaded words of a view and its headings, the elements that match `parts`, where they are displayed. */
export function textFigure(root, parts) {
  const origin = root.getBoundingClientRect(), below = getComputedStyle(root).color;
  const items = [...root.querySelectorAll(parts)].flatMap(part => {
    const box = part.getBoundingClientRect(), middle = box.height / 2,
      [x, y] = [box.x - origin.x + 8, box.y - origin.y + 8];
    const group = part.parentElement.getBoundingClientRect(), { dataset: { weight }, textContent } = part;
    if (box.y + middle < group.top || box.y + middle > group.bottom) return []; // scrolled out of its group
    const { backgroundColor, color, fontSize } = getComputedStyle(part);
    const line = { type: "text", y: y + middle, text: visible(textContent, LONGEST_TEXT), size: parseFloat(fontSize),
      fill: color };
    if (backgroundColor === TRANSPARENT) return [{ ...line, x, anchor: "start" }];
    const centered = { ...line, x: x + box.width / 2, anchor: "middle" };
    return [{ type: "rect", x, y, w: box.width, h: box.height, fill: backgroundColor }, centered,
      ...weight ? [{ ...centered, y: y + box.height + 10, text: weight, size: 11, fill: below }] : []];
  });
  return { width: origin.width + 16, height: origin.height + 16, items };
}

/** Draw an item of a figure on a canvas. */
export const drawItem = (context, item) => DRAWERS[item.type](context, item);

/** A canvas with the figure, at twice its size. */
export function toCanvas({ width, height, items }, { paper }) {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d"), ratio = 2;
  Object.assign(canvas, { width: Math.ceil(width * ratio), height: Math.ceil(height * ratio) });
  context.scale(ratio, ratio);
  for (const item of [{ type: "rect", x: 0, y: 0, w: width, h: height, fill: paper }, ...items])
    drawItem(context, item);
  return canvas;
}

/** Save a blob as a file. */
export function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
