// One sequential color map for tokens, heat maps and thumbnails, and its legend.

import { element } from "./dom.js";

export const STEPS = 65535; // weights are counted in steps of 1 / 65535

const TABLES = new Map();

/** The 256 colors of a ramp of hexadecimal colors: { packed, css, text }. */
function table(ramp) {
  const key = ramp.join();
  if (!TABLES.has(key)) {
    const stops = ramp.map(hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)));
    TABLES.set(key, Array.from({ length: 256 }, (_, i) => {
      const at = i / 255 * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
      const rgb = stops[low].map((c, k) => Math.round(c + (stops[low + 1][k] - c) * (at - low)));
      const packed = (0xff000000 | rgb[0] | rgb[1] << 8 | rgb[2] << 16) >>> 0;
      return { packed, css: `rgb(${rgb})`, text: luminance(rgb) > 0.179 ? "#000" : "#fff" };
    }));
  }
  return TABLES.get(key);
}

function luminance(rgb) {
  const [r, g, b] = rgb.map(c => c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * A color scale from 0 to `peak`: `color(weight)` is { packed, css, text }; `lut()` maps steps to packed colors.
 * With the curve "root", colors are proportional to the square root of the weight.
 */
export function colorScale(ramp, peak, curve) {
  const colors = table(ramp), power = curve === "root" ? 0.5 : 1, top = peak || 1;
  const color = weight => colors[Math.round(255 * Math.min(1, Math.max(0, weight / top)) ** power)];
  let packed = null;
  const lut = () => packed ??= Uint32Array.from({ length: STEPS + 1 }, (_, step) => color(step / STEPS).packed);
  const key = `${ramp[0]} ${top} ${power}`;
  return { color, lut, low: 0, peak: top, power, curve, key, name: "Weight" };
}

/** A color scale of scores: from -peak, in another hue, if some are negative. */
export function signedScale({ ramp, negative }, peak, hasNegative, curve) {
  const [positive, opposite] = [ramp, negative].map(each => colorScale(each, peak, curve));
  return { ...positive, name: "Score", low: hasNegative ? -positive.peak : 0,
    color: score => score < 0 ? opposite.color(-score) : positive.color(score) };
}

/**
 * The numbers of a legend, with as many decimals as distinct numbers need: two, or more if two of them would be equal
 * or the largest would have less than two digits; in scientific notation if that takes more than six.
 */
function ticks(values) {
  const distinct = new Set(values).size, largest = Math.max(...values.map(Math.abs));
  const zero = value => value === 0 ? "0" : null;
  const written = decimals => values.map(value => zero(value) ?? value.toFixed(decimals));
  const decimals = [2, 3, 4, 5, 6].find(count => largest >= 10 ** (1 - count)
    && new Set(written(count)).size === distinct
    && written(count).every((text, i) => values[i] === 0 || Number(text) !== 0));
  const texts = decimals ? written(decimals) : values.map(value => zero(value) ?? value.toExponential(1));
  return texts.map(text => text.replaceAll("-", "−"));
}

/**
 * A legend: the gradient with the weights at five positions, and a note on what the scale covers; `masked` adds the
 * hatch of masked cells.
 */
export function legend(scale, note, masked = false) {
  const gradient = element("span", "", { className: "gradient" });
  const from = scale.low < 0 ? -1 : 0; // positions of the legend are shares of the peak
  const valueAt = share => Math.sign(share) * scale.peak * Math.abs(share) ** (1 / scale.power);
  const stops = Array.from({ length: 17 }, (_, i) => scale.color(valueAt(from + (1 - from) * i / 16)).css);
  gradient.style.background = `linear-gradient(90deg, ${stops})`;
  const marks = ticks([0, 0.25, 0.5, 0.75, 1].map(at => valueAt(from + (1 - from) * at)));
  const bar = element("span", "", { className: "bar" }, gradient,
    element("span", "", { className: "ticks" }, ...marks.map(text => element("span", text))));
  const curve = scale.curve === "root" ? `color by the square root of the ${scale.name.toLowerCase()}` : "";
  return element("div", "", { className: "legend" }, element("span", scale.name), bar,
    ...masked ? [element("span", "", { className: "masked-key" }, element("span", "", { className: "swatch hatched" }),
      "masked")] : [],
    element("span", [note, curve].filter(Boolean).join("; "), { className: "note" }));
}
