// An image and its caption: the attention of each word over the image.

import { legend } from "../color.js";
import { describe, exampleOf, selected, themeColors } from "../context.js";
import { element, listbox, mark, option } from "../dom.js";
import { headStrip } from "../heads.js";
import { drawImage, drawOverlay, imageFigure, imageNote, imageScale, PATCHES, roomFor, scaleToFit } from "../image.js";
import { pin, selection } from "../state.js";
import { spelled } from "../text.js";
import { drawnWeight } from "../weights.js";

const TILE = 112; // pixels

export const caption = {
  name: "caption",
  label: "Caption",
  controls: ["layer", "scale", "curve"],
  standalone: true,

  accepts: (payload, state) => exampleOf(payload, state)?.picture?.kind === "caption",

  render(container, payload, state) {
    const example = exampleOf(payload, state), { picture } = example,
      attends = example.maps.length > 0 && example.texts[example.maps[0].rows].length > 0;
    const original = element("canvas", "", { id: "original", role: "img", ariaLabel: "Input image" }),
      focus = element("canvas", "", { id: "focus", role: "img" });
    const figures = element("div", "", { className: "pictures" },
      element("figure", "", {}, element("figcaption", "Image", { className: "label" }), original));
    const fit = () => scaleToFit(picture, roomFor(container)),
      tileSize = TILE / Math.max(picture.width, picture.height);
    if (!attends) {
      const note = example.text ? "No attention weights were recorded." : "The caption is empty.";
      container.append(figures, element("p", note, { className: "note" }));
      drawImage(original, picture, fit());
      return { figure: () => imageFigure([original], ["Image"], themeColors(payload, state)) };
    }
    const heads = headStrip(container, payload, state);
    const words = element("div", "", { id: "words", className: "tiles", role: "listbox" }),
      label = element("span", "Words", { className: "label", id: "words-label" });
    words.setAttribute("aria-labelledby", label.id);
    words.setAttribute("aria-orientation", "horizontal");
    const title = element("figcaption", "", { className: "label" }),
      readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      scale = element("div", "", { className: "scale" });
    figures.append(element("figure", "", {}, title, focus));
    container.append(figures, readout, label, words, scale);
    const tiles = example.texts[example.maps[0].rows].map((token, row) => {
      const canvas = element("canvas"), cell = option(row, canvas,
        element("span", "", { dir: "auto" }, ...spelled(token)));
      words.append(cell);
      return canvas;
    });
    listbox(words, { chosen: row => pin(state, row, null),
      pointed: row => state.set({ pointed: { row, column: null } }) });
    for (const name of ["pointerleave", "focusout"])
      words.addEventListener(name, () => state.set({ pointed: null }));

    const update = changed => {
      const { plane, map, head } = selected(payload, { ...state, special: "shown" }),
        colors = imageScale(payload, state, map, head), { row } = selection({ ...state, column: null }, plane);
      const draw = (canvas, each, size) => drawImage(canvas, picture, size, { gray: true,
        over: context => drawOverlay(context, picture, size, cell => drawnWeight(plane, each, cell), colors) });
      if ([...changed].some(key => !["pointed", "row", "column"].includes(key))) {
        heads.update();
        tiles.forEach((canvas, each) => draw(canvas, each, tileSize));
        drawImage(original, picture, fit());
        scale.replaceChildren(legend(colors, imageNote(payload, state)));
      }
      draw(focus, row, fit());
      mark(words, row);
      focus.ariaLabel = `Attention of word ${row + 1}`;
      title.replaceChildren("Attention of ", element("bdi", "", {}, ...spelled(plane.rowTokens[row])));
      readout.replaceChildren(...describe(plane, { row, column: null }, PATCHES).nodes);
    };
    update(new Set(["view"]));
    const observer = new ResizeObserver(() => update(new Set(["view"])));
    observer.observe(container);
    return { update, destroy: () => observer.disconnect(), figure: () => imageFigure([original, focus],
      ["Image", title.textContent.replace(/\s+/g, " ")], themeColors(payload, state)) };
  },
};
