// Scores of the units of an input for an output of the model, by several attribution methods side by side.

import { percent } from "../candidates.js";
import { tokenChips } from "../chips.js";
import { legend, signedScale } from "../color.js";
import { exampleOf, themeColors } from "../context.js";
import { element, listbox, mark, option, quotation } from "../dom.js";
import { textFigure } from "../export.js";
import { COVER, drawImage, drawOverlay, frame, imageFigure, listenPatches, patchName } from "../image.js";
import { scaleToFit, scoreScale } from "../image.js";
import { decimal, matrixOf } from "../operands.js";
import { LONGEST_TEXT, LONGEST_TITLE, quoted, spelled, visible } from "../text.js";

/** What the scores of the methods mean, given the quoted output. */
const noteOf = (name, methods) => [
  methods.some(({ scores }) => hasNegative(scores)) ? `Scores above 0 support ${name}, scores below 0 oppose it.`
    : `Higher scores support ${name} more; no score is below 0.`,
  methods.length > 1 ? "Each method has its own scale." : ""].filter(Boolean).join(" ");

const hasNegative = packed => {
  const matrix = matrixOf(packed);
  return [...Array(matrix.rows).keys()].some(row => matrix.row(row).some(score => score < 0));
};

const UNITS = { token: "Tokens", word: "Words", sentence: "Sentences", region: "Regions" };

export const explanation = {
  name: "explanation",
  label: "Explanation",
  controls: ["curve"],
  standalone: true,

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.explanation),

  render(container, payload, state) {
    const example = exampleOf(payload, state), { outputs, methods } = example.explanation;
    const chosen = element("div", "", { className: "parts-of-input", id: "outputs", role: "listbox",
      ariaLabel: "Outputs" });
    chosen.append(...outputs.map(([text, p], i) =>
      option(i, element("span", visible(text.trim() || text), { dir: "auto" }), element("small", percent(p)))));
    const readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      grid = element("div", "", { className: "panes" }), note = element("p", "", { className: "note" });
    container.append(...outputs.length > 1 ? [chosen] : [], readout, grid, note);
    listbox(chosen, { chosen: row => state.set({ row, pointed: null }),
      pointed: row => state.set({ pointed: { row, column: state.column } }) });
    for (const name of ["pointerleave", "focusout"]) chosen.addEventListener(name, () => state.set({ pointed: null }));
    const output = () => Math.min(outputs.length - 1, state.pointed?.row ?? state.row ?? 0);
    const point = column => state.set({ pointed: column === null ? null : { row: state.row, column } });
    const pinned = column => state.set({ column: state.column === column ? null : column });
    const pane = example.picture ? imagePane : textPane;
    const panes = methods.map((method, i) => pane(grid, example, method, `method-${i}`, { point, pinned }));

    const update = () => {
      const row = output(), { column } = state.pointed ?? state;
      mark(chosen, row);
      methods.forEach((method, i) => {
        const scores = matrixOf(method.scores).row(row), peak = scores.reduce((a, b) => Math.max(a, Math.abs(b)), 0);
        panes[i].show(scores, signedScale(themeColors(payload, state), peak, scores.some(score => score < 0),
          state.curve || "linear"), column !== null && column < scores.length ? column : null);
      });
      readout.replaceChildren(...description(example, row, column));
      note.textContent = noteOf(quoted(outputs[row][0].trim() || outputs[row][0]), methods);
    };
    update();
    return { update, destroy: () => panes.forEach(each => each.destroy()),
      ...example.explanation.unit !== "sentence" && { figure: () => example.picture
        ? imageFigure(panes.map(each => each.canvas), methods.map(({ name }) => name), themeColors(payload, state))
        : textFigure(grid, "h3, .meta, [role=option]") } };
  },
};

/** What the panes have in common: the name of the method, its faithfulness and its scale. */
function shell(grid, example, { name, faithfulness }, id) {
  const box = element("section", "", { className: "pane" }, element("h3", name, { id: `${id}-title` })),
    scale = element("div", "", { className: "scale" });
  if (faithfulness) box.append(element("p", `AOPC: comprehensiveness ${decimal(faithfulness[0])}, sufficiency ${
    decimal(faithfulness[1])}`, { className: "meta" }));
  box.setAttribute("aria-labelledby", `${id}-title`);
  grid.append(box);
  return { box, scale };
}

/** A method's scores of the units of a text. */
function textPane(grid, example, method, id, { point, pinned }) {
  const { units, unit } = example.explanation, { box, scale } = shell(grid, example, method, id);
  const chips = tokenChips(box, { id, point, pinned, leave: () => point(null),
    spell: unit === "token" ? spelled : text => [visible(text, LONGEST_TEXT)] });
  chips.group.classList.toggle("sentences", unit === "sentence");
  box.append(scale);
  chips.fill(UNITS[unit], units, [...units.keys()], id);
  return {
    show(scores, colors, column) {
      chips.shade(index => scores[index], colors);
      chips.select(column, false, null);
      scale.replaceChildren(legend(colors, ""));
    },
    destroy() {},
  };
}

/** A method's positive scores of the regions of an image. */
function imagePane(grid, example, method, id, { point, pinned }) {
  const { picture } = example, { box, scale } = shell(grid, example, method, id), [down, across] = picture.grid;
  const canvas = element("canvas", "", { id, tabIndex: 0, role: "application",
    ariaLabel: `Regions by ${method.name}: hover or use the arrow keys to see the score of a region` });
  box.append(element("div", "", { className: "pictures" }, canvas), scale);
  let last = null, region = null;
  const draw = () => {
    const [scores, curve] = last, size = scaleToFit(picture, box.clientWidth),
      peak = scores.reduce((a, b) => Math.max(a, b), 0), colors = scoreScale(peak, curve);
    const [wide, high] = [picture.width * size / across, picture.height * size / down];
    drawImage(canvas, picture, size, { gray: true, over: context => {
      drawOverlay(context, picture, size, cell => Math.max(0, scores[cell]), colors);
      if (region !== null) frame(context, region % across * wide, Math.floor(region / across) * high, wide, high);
    } });
    scale.replaceChildren(peak > 0 ? legend({ ...colors, name: "Score" },
      [scores.some(score => score < 0) ? "negative scores are not colored" : "", COVER].filter(Boolean).join("; "))
      : element("p", "No region has a positive score.", { className: "note" }));
  };
  // Patches are counted from 1, because row 0 of a vision Transformer is the class token.
  listenPatches(canvas, () => picture.grid, () => region === null ? 0 : region + 1,
    { point: row => point(row === null ? null : row - 1), pinned: row => pinned(row - 1) });
  const observer = new ResizeObserver(() => { if (last) draw(); });
  observer.observe(box);
  return {
    canvas,
    show(scores, { curve }, column) {
      last = [scores, curve];
      region = column;
      draw();
    },
    destroy: () => observer.disconnect(),
  };
}

/** The score of a unit by each method, or the units with the largest scores of the first method. */
function description({ explanation: { units, methods }, picture }, row, column) {
  const scores = methods.map(method => matrixOf(method.scores).row(row));
  const pair = (name, score) => element("span", "", { className: "pair" }, name, " ",
    element("span", decimal(score), { className: "number" }), " ");
  const nameOf = index => picture ? patchName(units[index]) : quotation(visible(units[index].trim() || units[index], LONGEST_TITLE));
  if (column !== null && column < units.length)
    return [nameOf(column), ": ", ...methods.map(({ name }, i) => pair(name, scores[i][column]))];
  const best = [...units.keys()].sort((a, b) => scores[0][b] - scores[0][a]).slice(0, 5);
  return [`Largest scores by ${methods[0].name}: `, ...best.map(index => pair(nameOf(index), scores[0][index]))];
}
