// Candidates with their probabilities as bars, and the score of an example.

import { element } from "./dom.js";
import { visible } from "./text.js";

const MOST = 3; // labels in a line of text

/** A probability in percent. */
export const percent = p =>
  `${p >= 0.0001 || p === 0 ? (100 * p).toFixed(2) : Number((100 * p).toPrecision(2))} %`;

/** A candidate as an item of a list, a bar of its probability; `nodes` are its text. */
export function candidateBar(nodes, p, chosen) {
  const fill = element("span", "", { className: "fill" });
  fill.style.width = `${100 * p}%`;
  return element("li", "", { className: chosen ? "chosen" : "" },
    element("span", "", { className: "token", dir: "auto" }, ...nodes),
    element("span", "", { className: "track" }, fill), element("span", percent(p), { className: "value" }));
}

/** The probability of candidates that are not in a list. */
export const remaining = candidates => 1 - candidates.reduce((sum, [, p]) => sum + p, 0);

/** The most probable labels of an example, or its score; "" if it has neither. */
export function scoreText({ predictions, score, score_name }) {
  if (predictions.length === 1)
    return predictions[0].candidates.slice(0, MOST).map(([text, p]) => `${visible(text)} ${percent(p)}`).join(", ");
  return score === null ? "" : `${score_name} ${Number(score.toPrecision(3)).toString().replace("-", "−")}`;
}
