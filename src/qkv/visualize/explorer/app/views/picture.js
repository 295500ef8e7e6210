// An image, and the attention of a vision Transformer over its patches.
// Rows are the class token, the patches and their mean, or in reverse order the mean, if the model classifies it;
// columns are the class token and the patches.

import { legend } from "../color.js";
import { describe, exampleOf, selected, themeColors } from "../context.js";
import { element, listbox, mark, option } from "../dom.js";
import { headStrip } from "../heads.js";
import { drawImage, drawOverlay, frame, imageFigure, listenPatches, roomFor, scaleToFit } from "../image.js";
import { imageNote, imageScale, PATCHES } from "../image.js";
import { pin, selection } from "../state.js";
import { drawnWeight, planeOf } from "../weights.js";

export const picture = {
  name: "picture",
  label: "Image",
  aliases: ["image"],
  controls: ["layer", "scale", "curve"],

  accepts: (payload, state) => exampleOf(payload, state)?.picture?.kind === "patches"
    && exampleOf(payload, state).maps.length > 0,

  render(container, payload, state) {
    const example = exampleOf(payload, state), { grid: [down, across] } = example.picture;
    const rowOf = () => selection(state, selected(payload, state).plane).row ?? 0;
    const heads = headStrip(container, payload, state, (map, head) => overPatches(example, map, head, rowOf()));
    const label = element("span", "Query", { className: "label", id: "readers-label" });
    const readers = element("div", "", { id: "readers", role: "listbox" });
    readers.setAttribute("aria-labelledby", "readers-label");
    const [original, patches] = [element("canvas", "", { id: "original", role: "img", ariaLabel: "Input image" }),
      element("canvas", "",
        { id: "patches", tabIndex: 0, role: "application",
          ariaLabel: "Patches: hover or use the arrow keys to see the attention of a patch" })];
    const figures = element("div", "", { className: "pictures" },
      element("figure", "", {}, element("figcaption", "Image", { className: "label" }), original),
      element("figure", "", {}, element("figcaption", "Attention", { className: "label" }), patches));
    const readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      scale = element("div", "", { className: "scale" });
    container.append(element("div", "", {}, label, readers), figures, readout, scale);

    const tokens = example.texts[example.maps[0].rows], whole = [0, tokens.length - 1];
    readers.append(...whole.map(row => option(row, tokens[row])));
    listbox(readers, { chosen: row => pin(state, row, null) });
    readers.addEventListener("focusin",
      event => state.set({ pointed: { row: Number(event.target.dataset.index), column: null } }));
    readers.addEventListener("focusout", () => state.set({ pointed: null }));
    listenPatches(patches, () => example.picture.grid, rowOf, { pinned: row => pin(state, row, null),
      point: row => state.set({ pointed: row === null ? null : { row, column: null } }) });

    const update = () => {
      const { plane, map, head } = selected(payload, state), row = rowOf(),
        colors = imageScale(payload, state, map, head);
      heads.update();
      mark(readers, row);
      const size = scaleToFit(example.picture, roomFor(container)), wide = example.picture.width * size / across,
        high = example.picture.height * size / down;
      const query = context => {
        if (row >= 1 && row <= down * across)
          frame(context, (row - 1) % across * wide, Math.floor((row - 1) / across) * high, wide, high);
      };
      drawImage(original, example.picture, size, { over: query });
      drawImage(patches, example.picture, size, { gray: true, over: context => {
        drawOverlay(context, example.picture, size, i => drawnWeight(plane, row, i + 1), colors);
        query(context);
      } });
      readout.replaceChildren(...describe(plane, { row, column: null }, PATCHES).nodes);
      scale.replaceChildren(legend(colors, imageNote(payload, state)));
    };
    const observer = new ResizeObserver(() => update());
    observer.observe(container);
    update();
    return { update, destroy: () => observer.disconnect(), figure: () => imageFigure([original, patches],
      ["Image", "Attention"], themeColors(payload, state)) };
  },
};

/** A row of the weights as a grid of patches. */
function overPatches(example, map, head, row) {
  const plane = planeOf(example, map, head), { grid: [down, across] } = example.picture;
  return { height: down, width: across, values: plane.read(0, { top: row, left: 1, height: 1, width: down * across }) };
}
