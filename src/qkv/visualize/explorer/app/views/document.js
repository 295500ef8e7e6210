// Sentences and words of a document, shaded by the weights of a hierarchical attention network.

import { colorScale, legend } from "../color.js";
import { exampleOf, themeColors } from "../context.js";
import { element, listbox, mark, option, quotation } from "../dom.js";
import { textFigure } from "../export.js";
import { spelled, visible } from "../text.js";

const NOTE = "word in its sentence times sentence; the weights of all words sum to 1";

export const documents = {
  name: "document",
  label: "Document",
  controls: ["curve"],
  standalone: true,

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.document),

  render(container, payload, state) {
    const { document: { sentences } } = exampleOf(payload, state);
    const list = element("div", "", { id: "sentences", role: "listbox", ariaLabel: "Sentences" }),
      readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      scale = element("div", "", { className: "scale" });
    container.append(readout, list, scale);
    listbox(list, { chosen: row => state.set({ row, pointed: null }),
      pointed: row => state.set({ pointed: { row, column: null } }) });
    list.addEventListener("pointermove", event => {
      const word = event.target.closest("[data-word]"), sentence = event.target.closest("[role=option]");
      if (word) state.set({ pointed: { row: Number(sentence.dataset.index), column: Number(word.dataset.word) } });
    });
    list.addEventListener("pointerleave", () => state.set({ pointed: null }));

    const draw = () => {
      const { ramp } = themeColors(payload, state), curve = state.curve || "linear";
      const words = colorScale(ramp, Math.max(...sentences.map(each => each.weight * Math.max(...each.weights))), curve),
        whole = colorScale(ramp, Math.max(...sentences.map(each => each.weight)), curve);
      list.replaceChildren(...sentences.map((sentence, i) => row(sentence, i, words, whole)));
      scale.replaceChildren(element("span", "Sentences", { className: "label" }), legend(whole, "they sum to 1"),
        element("span", "Words", { className: "label" }), legend(words, NOTE));
    };
    const update = changed => {
      if ([...changed].some(key => !["pointed", "row", "column"].includes(key))) draw();
      const { row: at, column } = state.pointed ?? { row: state.row, column: null },
        best = sentences.reduce((top, each, i) => each.weight > sentences[top].weight ? i : top, 0),
        index = at !== null && at < sentences.length ? at : best;
      mark(list, index);
      readout.replaceChildren(...description(sentences[index], index, column));
    };
    update(new Set(["view"]));
    return { update, figure: () => textFigure(list, ".weight, .sentence span") };
  },
};

function row({ weight, words, weights, continues }, index, colors, whole) {
  const shade = (span, { css, text }) => Object.assign(span.style, { background: css, color: text }) && span;
  const text = element("p", "", { className: "sentence", dir: "auto" });
  words.forEach((word, i) => {
    const [, before, inner, after] = word.match(/^(\s*)([^]*?)(\s*)$/);
    const span = element("span", "", {}, ...spelled(inner));
    span.dataset.word = String(i);
    text.append(before && i ? " " : "", ...inner ? [shade(span, colors.color(weight * weights[i]))] : [],
      after ? " " : "");
  });
  if (continues) text.append(element("span", "…", { className: "continues", title: "continues in the next part" }));
  return option(index, shade(element("span", weight.toFixed(3), { className: "weight" }), whole.color(weight)), text);
}

function description({ weight, words, weights }, index, column) {
  const start = `Sentence ${index + 1}: weight ${weight.toFixed(4)}. `;
  const chosen = column !== null && column < words.length ? [column]
    : [...words.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  return [start, ...chosen.map(i => element("span", "", { className: "pair" }, quotation(visible(words[i].trim())), " ",
    element("span", `${weights[i].toFixed(4)} × ${weight.toFixed(4)} = ${(weights[i] * weight).toFixed(4)}`,
      { className: "number" }), " "))];
}
