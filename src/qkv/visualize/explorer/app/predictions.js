// What the model predicts for an example: the most probable labels, or those of each word or mask.

import { candidateBar, percent, remaining } from "./candidates.js";
import { exampleOf } from "./context.js";
import { element, listbox, mark, option } from "./dom.js";
import { visible } from "./text.js";

const MOST = 5; // candidates shown
const LEAST = 0.00005; // probability of the others, below which they are not shown

/** Fill a box with the predictions of the selected example. */
export function showPredictions(box, payload, state) {
  const { predictions } = exampleOf(payload, state), several = predictions.length > 1;
  box.hidden = predictions.length === 0;
  if (box.hidden) return box.replaceChildren();
  const list = element("ol", "", { className: "candidates", ariaLabel: "Most probable" });
  const parts = element("div", "", { className: "parts-of-input", role: "listbox", ariaLabel: "Predictions" });
  parts.append(...several ? predictions.map(chip) : []);
  box.replaceChildren(...several ? [parts] : [], list);
  const show = index => {
    const { part, candidates } = predictions[index], shown = candidates.slice(0, MOST), rest = remaining(shown);
    list.ariaLabel = several ? `Most probable for ${visible(part)}` : "Most probable";
    list.replaceChildren(...shown.map(([text, p], i) => candidateBar([visible(text)], p, i === 0)),
      ...rest > LEAST ? [candidateBar([element("i", "others")], rest, false)] : []);
    mark(parts, index);
  };
  listbox(parts, { chosen: index => state.set({ part: String(index) }), pointed: show });
  const selected = () => Math.min(predictions.length - 1, Number(/^\d+$/.test(state.part ?? "") ? state.part : 0));
  for (const name of ["pointerleave", "focusout"]) parts.addEventListener(name, () => show(selected()));
  show(selected());
}

/** A word or mask with its most probable tag or token. */
function chip({ part, candidates: [[text, p]] }, index) {
  return option(index, element("span", visible(part), { dir: "auto" }),
    element("b", visible(text), { dir: "auto" }), element("small", percent(p)));
}
