// Next tokens of a language model: the distribution at each step, and what the step attended to.
// Step n predicts token n from the tokens before it: the query of token n - 1 attends to them.

import { isInteger } from "../address.js";
import { candidateBar, percent } from "../candidates.js";
import { tokenChips } from "../chips.js";
import { legend } from "../color.js";
import { describe, exampleOf, scaleNote, selected, themeColors } from "../context.js";
import { button, element, quotation } from "../dom.js";
import { headStrip } from "../heads.js";
import { clipped, spelled, visible } from "../text.js";
import { drawnWeight } from "../weights.js";

const ROW = 26, BAR = 240, NAME = 110; // pixels of a figure
const NOTE = "Probabilities of the model at temperature 1, before any sampling option.";

export const generation = {
  name: "generation",
  label: "Next token",
  aliases: ["next-token"],
  controls: ["layer", "scale", "curve"],
  keys: { step: isInteger },

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.generation),

  render(container, payload, state) {
    const { generation: { prompt, steps } } = exampleOf(payload, state), last = steps.length;
    const go = step => state.set({ step: String(Math.min(last, Math.max(1, step))), pointed: null });
    const previous = button("‹ Previous", () => go(stepOf(state, steps, prompt) - 1), { id: "previous-step" }),
      next = button("Next ›", () => go(stepOf(state, steps, prompt) + 1), { id: "next-step" });
    const counter = element("span", "", { className: "note", id: "step" });
    const bars = element("ol", "", { className: "candidates", id: "candidates", ariaLabel: "Most likely next tokens" });
    const outcome = element("p", "", { id: "outcome", ariaLive: "polite" }),
      readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      scale = element("div", "", { className: "scale" });
    container.append(element("div", "", { className: "stepper" }, previous, next, counter));
    const chips = tokenChips(container, { id: "steps", leave: () => {}, point: () => {}, pinned: index => go(index) });
    container.append(outcome, bars, element("p", NOTE, { className: "note" }));
    const heads = headStrip(container, payload, state);
    container.append(readout, scale);
    const keys = event => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      go(stepOf(state, steps, prompt) + move);
    };
    chips.group.addEventListener("keydown", keys, true); // arrows change the step instead of the focus

    const update = () => {
      const { example, map, plane, scale: colors } = selected(payload, { ...state, special: "shown" });
      const step = stepOf(state, steps, prompt), tokens = example.texts[map.columns], row = step - 1;
      heads.update();
      chips.fill(prompt === null ? "Tokens" : `Tokens: ${prompt} of the prompt, ${last - prompt} generated`, tokens,
        plane.columns, plane.key);
      for (const cell of chips.group.children)
        cell.classList.toggle("generated", prompt !== null && cell.dataset.index >= prompt);
      chips.shade(index => index < step ? drawnWeight(plane, row, index) : 0, colors);
      chips.select(step < last ? step : null, false, Math.min(step, last - 1));
      previous.disabled = step <= 1;
      next.disabled = step >= last;
      counter.textContent = step < last ? `Step ${step} of ${last}` : `Step ${last} of ${last}: after the last token`;
      outcome.replaceChildren(...outcomeNodes(steps[row], tokens, step));
      bars.replaceChildren(...steps[row].candidates.map(([token, p], i) =>
        candidateBar(token.trim() ? spelled(token) : [blank(token)], p, steps[row].rank === i + 1)));
      readout.replaceChildren(`Predicted at token ${step}: `, ...describe(plane, { row, column: null }).nodes);
      scale.replaceChildren(legend(colors, scaleNote(payload, state)));
    };
    update();
    return { update,
      figure: () => figure(steps[stepOf(state, steps, prompt) - 1], themeColors(payload, state)) };
  },
};

/** The step of the state; by default the first generated token, or the token after the text. */
function stepOf(state, steps, prompt) {
  const fallback = prompt === null ? steps.length : Math.min(prompt, steps.length);
  return /^\d+$/.test(state.step ?? "") ? Math.min(steps.length, Math.max(1, Number(state.step))) : fallback;
}

function outcomeNodes({ probability, rank, candidates }, tokens, step) {
  if (probability === null) return ["Most likely after the last token: ", quotation(visible(candidates[0][0]))];
  return [quotation(visible(tokens[step])), ` has probability ${percent(probability)}, `
    + (rank === 1 ? "the highest" : `rank ${rank}`)];
}

/** A token without visible characters, with a name for screen readers. */
const blank = token => element("span", "", { role: "img", ariaLabel: "space" }, ...spelled(token));

function figure({ candidates, rank }, { ink, ramp }) {
  const accent = ramp[ramp.length - 3];
  return { width: NAME + BAR + 90, height: 16 + candidates.length * ROW, items: candidates.flatMap(([token, p], i) => {
    const y = 8 + i * ROW;
    return [
      { type: "text", x: NAME - 8, y: y + 10, text: clipped(visible(token), 14), size: 13, anchor: "end", fill: ink,
        bold: rank === i + 1 },
      { type: "rect", x: NAME, y, w: Math.max(1, BAR * p), h: 20, fill: accent },
      { type: "text", x: NAME + BAR * p + 8, y: y + 10, text: percent(p), size: 12, anchor: "start", fill: ink },
    ];
  }) };
}
