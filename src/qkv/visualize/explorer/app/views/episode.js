// A few-shot episode: the query, and the support images with the attention of the query to each of them.

import { current, exampleOf, scaleNote, selected, themeColors } from "../context.js";
import { element, listbox, mark, option } from "../dom.js";
import { headStrip } from "../heads.js";
import { drawImage } from "../image.js";
import { pin } from "../state.js";
import { planeOf } from "../weights.js";

const SIDE = 88, ACROSS = 8; // pixels of the longer side of an image; images in a row of an exported figure

export const episode = {
  name: "episode",
  label: "Episode",
  controls: ["layer", "scale", "curve"],

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.episode) && exampleOf(payload, state).maps.length > 0,

  render(container, payload, state) {
    const example = exampleOf(payload, state), { images, classes } = example.episode, query = images.length - 1;
    const heads = headStrip(container, payload, state);
    const grid = element("div", "", { className: "episode", id: "episode", role: "listbox",
      ariaLabel: "Images: the query, then the support set" });
    const readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      scale = element("div", "", { className: "scale" });
    container.append(readout, grid, scale);
    const tiles = [query, ...Array(query).keys()].map(index => {
      const canvas = element("canvas", "", { role: "presentation" }),
        value = element("span", "", { className: "value" }), fill = element("span", "", { className: "fill" });
      const tile = option(index, canvas, element("span", captionOf(example, index)),
        element("span", "", { className: "track" }, fill), value);
      tile.classList.toggle("query", index === query);
      tile.classList.toggle("same", index !== query && classes[index] === classes[query]);
      grid.append(tile);
      return { index, tile, canvas, fill, value };
    });
    for (const { index, canvas } of tiles) drawImage(canvas, images[index], sizeOf(images[index]));
    listbox(grid, { chosen: column => pin(state, null, column),
      pointed: column => state.set({ pointed: { row: null, column } }) });
    for (const name of ["pointerleave", "focusout"]) grid.addEventListener(name, () => state.set({ pointed: null }));

    const update = () => {
      const { plane, scale: colors } = selected(payload, { ...state, special: "shown" });
      heads.update();
      for (const { index, fill, value } of tiles) {
        const weight = plane.at(0, index).value;
        fill.style.width = `${100 * (weight / colors.peak) ** colors.power}%`;
        value.textContent = weight.toFixed(4);
      }
      const { column } = state.pointed ?? state, best = tiles.reduce((top, { index }) =>
        plane.at(0, index).value > plane.at(0, top).value ? index : top, query);
      const at = column !== null && column <= query ? column : best;
      mark(grid, at);
      readout.replaceChildren(...description(payload, state, example, at));
      scale.replaceChildren(element("span", `A full bar is a weight of ${colors.peak.toFixed(4)}: ${
        scaleNote(payload, state) || "the largest of the head"}. Outlined: images of the class of the query.`,
      { className: "note" }));
    };
    update();
    return { update, figure: () => figure(tiles, themeColors(payload, state)) };
  },
};

const sizeOf = ({ width, height }) => SIDE / Math.max(width, height);

const captionOf = ({ episode: { classes, predicted } }, index) =>
  index === classes.length - 1 ? `query → ${predicted}` : `class ${classes[index]}`;

/** The weight of an image in each layer, of the selected head or of the average. */
function description(payload, state, example, index) {
  const nodes = [element("b", index === example.episode.classes.length - 1 ? "The query itself"
    : `Support image ${index + 1}, class ${example.episode.classes[index]}`), ": "];
  for (const map of example.maps) {
    const { head } = current(payload, { ...state, layer: map.layer });
    nodes.push(element("span", "", { className: "pair" }, element("bdi", map.layer), " ",
      element("span", planeOf(example, map, head).at(0, index).value.toFixed(4), { className: "number" }), " "));
  }
  return nodes;
}

function figure(tiles, { ink, ramp }) {
  const wide = SIDE + 16, high = SIDE + 52, accent = ramp[ramp.length - 3];
  const items = tiles.flatMap(({ tile, canvas, fill, value }, n) => {
    const x = 8 + n % ACROSS * wide, y = 8 + Math.floor(n / ACROSS) * high;
    const text = (line, from) => ({ type: "text", x, y: y + from, text: line, size: 11, anchor: "start", fill: ink });
    return [{ type: "image", x, y, w: canvas.clientWidth, h: canvas.clientHeight, canvas },
      text(tile.children[1].textContent, SIDE + 10),
      { type: "rect", x, y: y + SIDE + 18, w: Math.max(1, SIDE * parseFloat(fill.style.width) / 100), h: 6,
        fill: accent },
      text(value.textContent, SIDE + 34)];
  });
  return { width: 16 + Math.min(ACROSS, tiles.length) * wide, height: 16 + Math.ceil(tiles.length / ACROSS) * high,
    items };
}
