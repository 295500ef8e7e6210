// Tokens as a row of cells of real text, shaded by weight. Long texts show a window of tokens.

import { button, element, listbox, mark, option } from "./dom.js";
import { areCharacters, brief, leastBrief, LONGEST_TITLE, LONGEST_TOKEN, spelled, visible } from "./text.js";

export const WINDOW = 400; // tokens shown at a time

/**
 * Create a labeled group of tokens: `fill(tokens, indices)`, `shade(weightOf, scale)`, `select(index, pinned)`.
 * `point(index)` is called for hover and focus, `pinned(index)` for a click or Enter; `spell(token)` makes the nodes of
 * a token.
 */
export function tokenChips(container, { id, point, pinned, leave, spell = spelled }) {
  const heading = element("span", "", { className: "label", id: `${id}-label` });
  const pager = element("span", "", { className: "pager", hidden: true });
  const group = element("div", "", { className: "tokens", id, role: "listbox" });
  group.setAttribute("aria-labelledby", heading.id);
  group.setAttribute("aria-orientation", "horizontal");
  container.append(element("div", "", { className: "chips" }, heading, pager, group));
  const chips = { all: [], tokens: [], first: 0, filled: "", shading: null };
  listbox(group, { pointed: point, chosen: pinned });
  group.addEventListener("pointerleave", leave);

  const turn = first => {
    chips.first = Math.max(0, Math.min(first, chips.all.length - WINDOW));
    const key = `${chips.first} ${chips.key}`;
    if (key === chips.filled) return;
    chips.filled = key;
    fillGroup(group, chips.tokens, chips.all.slice(chips.first, chips.first + WINDOW), spell);
    const last = Math.min(chips.first + WINDOW, chips.all.length);
    pager.hidden = chips.all.length <= WINDOW;
    pager.replaceChildren(button("‹", () => { turn(chips.first - WINDOW); shade(); }, { ariaLabel: "Previous tokens" }),
      ` ${chips.first + 1}–${last} of ${chips.all.length} `,
      button("›", () => { turn(chips.first + WINDOW); shade(); }, { ariaLabel: "Next tokens" }));
  };
  const shade = () => {
    if (chips.shading) light(group, ...chips.shading);
  };
  return {
    group,
    fill(label, tokens, indices, key) {
      heading.textContent = label;
      Object.assign(chips, { tokens, all: indices, key });
      turn(chips.first);
    },
    shade(weightOf, scale) {
      chips.shading = [weightOf, scale];
      shade();
    },
    /** Mark a token; `center` is the token to scroll to. */
    select(index, isPinned, center) {
      const position = chips.all.indexOf(index ?? center);
      if (position >= 0 && (position < chips.first || position >= chips.first + WINDOW)) {
        turn(position - WINDOW / 2);
        shade();
      }
      mark(group, index);
      for (const child of group.querySelectorAll(".pinned")) child.classList.remove("pinned");
      if (isPinned) group.querySelector(`[data-index="${index}"]`)?.classList.add("pinned");
      const target = center !== null && center !== undefined && group.querySelector(`[data-index="${center}"]`);
      if (target) group.scrollTop = target.offsetTop - group.clientHeight / 2;
    },
  };
}

function fillGroup(group, tokens, indices, spell) {
  // Separate words by spaces, so that a copied row is readable; characters include their own spaces.
  const words = !areCharacters(indices.map(i => tokens[i]));
  group.replaceChildren(...indices.flatMap(i => {
    const token = tokens[i], cell = option(i, ...spell(token));
    cell.dir = "auto";
    if (!token.trim()) cell.ariaLabel = "space";
    if (token.length > LONGEST_TOKEN) cell.title = `${token.length} characters: ${visible(token, LONGEST_TITLE)}`;
    return words ? [cell, " "] : [cell];
  }));
}

/** Shade tokens by weight or score, with the number under each token where it is not small. */
function light(group, weightOf, scale) {
  const cells = [...group.children], values = cells.map(cell => weightOf ? weightOf(Number(cell.dataset.index)) : 0);
  const peak = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0),
    least = Math.max(leastBrief(scale.peak), peak / 20);
  cells.forEach((cell, n) => {
    const { css, text } = scale.color(values[n]);
    cell.style.background = weightOf ? css : "";
    cell.style.color = weightOf ? text : "";
    cell.dataset.weight = Math.abs(values[n]) >= least ? brief(values[n], scale.peak) : "";
  });
}
