// Export of a figure as SVG or PNG. A figure is { width, height, items } with items of type rect, path, text and image.

import { drawText } from "./axes.js";

const FONT = "system-ui, sans-serif";
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
