// The heads of the selected layer as a row of thumbnails.

import { current, scaleFor } from "./context.js";
import { element, listbox, mark, option } from "./dom.js";
import { paint, thumbnail } from "./weights.js";

/** A canvas with the thumbnail of a head; `small` replaces the weights, such as those over an image. */
export function thumbnailCanvas(payload, state, map, head, small = null) {
  const { example } = current(payload, state), values = small ?? thumbnail(example, map, head, state.special);
  const shape = Math.min(1, Math.max(0.25, values.height / values.width));
  const canvas = element("canvas", "", { width: 144, height: Math.round(144 * shape) }),
    context = canvas.getContext("2d");
  context.imageSmoothingEnabled = values.width > canvas.width;
  context.drawImage(paint(values, scaleFor(payload, state, map, head)), 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** Name of a head. */
export const headName = head => head === "average" ? "average" : `head ${head}`;

/**
 * Create the row of heads, "average" first; hidden if the layer has one head. `toggle(head)` is called for a click with
 * the shift key, and for Shift + Enter.
 */
export function headStrip(container, payload, state, smallOf = () => null, toggle = null) {
  const label = element("span", "Head", { className: "label", id: "heads-label" });
  const group = element("div", "", { id: "heads", role: "listbox" });
  group.setAttribute("aria-labelledby", "heads-label");
  group.setAttribute("aria-orientation", "horizontal");
  const strip = element("div", "", { className: "head-choice" }, label, group);
  container.append(strip);
  let drawn = "";
  const choose = index => state.set({ head: index === 0 ? "average" : index - 1, ...toggle ? { heads: "" } : {} });
  listbox(group, { chosen: choose });
  group.addEventListener("focusin", event => { if (!shifted) choose(Number(event.target.dataset.index)); });
  // With the shift key a head is added to the others, instead of chosen, also when it gets the focus.
  let shifted = false;
  if (toggle) {
    const add = event => {
      const index = Number(event.target.closest?.("[role=option]")?.dataset.index);
      if (!event.shiftKey || !index) return;
      event.preventDefault();
      event.stopPropagation();
      toggle(index - 1);
    };
    group.addEventListener("pointerdown", event => {
      shifted = event.shiftKey;
      addEventListener("pointerup", () => setTimeout(() => { shifted = false; }), { once: true });
    }, true);
    group.addEventListener("click", add, true);
    group.addEventListener("keydown", event => { if (event.key === "Enter") add(event); }, true);
  }

  const update = () => {
    const { example, map, head } = current(payload, state);
    strip.hidden = map.heads === 1;
    if (strip.hidden) return;
    const heads = ["average", ...Array(map.heads).keys()], smalls = heads.map(each => smallOf(map, each));
    const key = [state.example, example.source, map.layer, scaleFor(payload, state, map, "average").key, state.scale,
      state.special, smalls.some(Boolean) ? state.pointed?.row ?? state.row : ""].join();
    if (key !== drawn) {
      const focused = group.contains(document.activeElement) ? document.activeElement.dataset.index : null;
      group.replaceChildren(...heads.map((each, i) =>
        option(i, thumbnailCanvas(payload, state, map, each, smalls[i]), element("span", headName(each)))));
      if (focused !== null) group.querySelector(`[data-index="${focused}"]`)?.focus();
    }
    drawn = key;
    mark(group, head === "average" ? 0 : head + 1);
  };
  return { update, group };
}
