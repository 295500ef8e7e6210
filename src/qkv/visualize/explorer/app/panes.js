// One side of a comparison: the title, layer and head of an example, its tokens, and a heat map or an image.

import { scoreText } from "./candidates.js";
import { tokenChips } from "./chips.js";
import { axisNames, describe, layersOf } from "./context.js";
import { element, select } from "./dom.js";
import { heatMap, heatMapFigure } from "./heatmap.js";
import { headName } from "./heads.js";
import { drawImage, drawOverlay, frame, imageFigure, listenPatches, PATCHES, scaleToFit } from "./image.js";
import { clipped, LONGEST_TOKEN } from "./text.js";
import { drawnWeight } from "./weights.js";

/** What all panes have: a box with a heading, the choice of layer and head, and a readout. */
function shell(grid, name) {
  const key = name.toLowerCase(), heading = element("h3", "", { id: `${key}-title` }),
    score = element("p", "", { className: "meta" }), choices = element("div", "", { className: "sorting" }),
    readout = element("p", "", { className: "readout", id: `${key}-readout`, ariaLive: "polite" });
  const box = element("section", "", { className: "pane", id: `${key}-pane` }, element("div", "", {}, heading, score),
    choices);
  box.setAttribute("aria-labelledby", heading.id);
  grid.append(box);
  const fill = (title, { example, map, head }, set) => {
    heading.replaceChildren(element("span", `${name} `, { className: "from" }), element("bdi", title));
    score.textContent = scoreText(example);
    const heads = ["average", ...Array(map.heads).keys()];
    choices.replaceChildren(
      ...example.maps.length > 1 ? [select(`Layer of ${name}`,
        layersOf(example).map(each => [each.layer, clipped(each.layer, LONGEST_TOKEN)]), map.layer,
        value => set("layer", value))] : [],
      ...map.heads > 1 ? [select(`Head of ${name}`, heads.map(each => [each, headName(each)]), head,
        value => set("head", value))] : []);
  };
  return { key, box, readout, fill };
}

/** Mark tokens that have no equal one on the other side. */
function markUnmatched({ group }, other) {
  for (const cell of group.children) cell.classList.toggle("unmatched", other[Number(cell.dataset.index)] < 0);
}

/**
 * A pane of texts. `point(row, column)` and `pinned(row, column)` are called with indices of tokens.
 * `fill(title, shown, scale, matched, set)` shows an example { example, map, head, plane }, where `matched` has the
 * equal rows and columns of the other side and `set(key, value)` chooses a layer or head.
 * `select(at, { here, pinned })` marks tokens, which are those under the pointer if `here`.
 */
export function textPane(grid, name, { point, pinned }) {
  const { key, box, readout, fill } = shell(grid, name), leave = () => point(null, null);
  const rows = tokenChips(box,
    { id: `${key}-rows`, leave, point: row => point(row, null), pinned: row => pinned(row, null) });
  const columns = tokenChips(box,
    { id: `${key}-cols`, leave, point: column => point(null, column), pinned: column => pinned(null, column) });
  box.append(readout);
  const map = heatMap(box, { point, pinned,
    label: `Heat map of ${name}: arrow keys move between cells, Enter pins, plus and minus zoom, 0 shows everything` });
  let plane = null, colors = null;
  return {
    map,
    fill(title, shown, scale, matched, set) {
      ({ plane } = shown);
      colors = scale;
      fill(title, shown, set);
      const [rowName, columnName] = axisNames(shown.example, shown.map);
      rows.fill(rowName, plane.rowTokens, plane.rows, plane.key);
      columns.fill(columnName, plane.columnTokens, plane.columns, plane.key);
      markUnmatched(rows, matched.rows);
      markUnmatched(columns, matched.columns);
      map.show(plane, scale);
    },
    select(at, marked) {
      const { row, column } = at, none = row === null && column === null;
      columns.shade(row === null ? null : index => drawnWeight(plane, row, index), colors);
      rows.shade(column === null ? null : index => drawnWeight(plane, index, column), colors);
      const { nodes, strongest: [best = 0] } = none ? { nodes: ["No equal token."], strongest: [] }
        : describe(plane, at);
      rows.select(row, marked.pinned && row !== null, marked.here ? null : row ?? best);
      columns.select(column, marked.pinned && column !== null, marked.here ? null : column ?? best);
      map.select(at, !none);
      readout.replaceChildren(...nodes);
    },
    figure: themed => heatMapFigure(plane, colors, themed),
    destroy: () => map.destroy(),
  };
}

/** A pane of an image: the words of a caption, or the class token and the mean of the patches, and the image. */
export function imagePane(grid, name, { point, pinned }) {
  const { key, box, readout, fill } = shell(grid, name);
  const rows = tokenChips(box, { id: `${key}-rows`, leave: () => point(null, null), point: row => point(row, null),
    pinned: row => pinned(row, null) });
  const canvas = element("canvas", "", { id: `${key}-image` });
  box.append(readout, element("div", "", { className: "pictures" }, canvas));
  let plane = null, colors = null, picture = null, row = 0;
  const draw = () => {
    const { width, height, grid: [down, across] } = picture,
      size = scaleToFit(picture, box.clientWidth), first = picture.kind === "patches" ? 1 : 0;
    drawImage(canvas, picture, size, { gray: true, over: context => {
      if (row === null) return;
      drawOverlay(context, picture, size, cell => drawnWeight(plane, row, cell + first), colors);
      const [wide, high] = [width * size / across, height * size / down];
      if (first && row >= 1 && row <= down * across)
        frame(context, (row - 1) % across * wide, Math.floor((row - 1) / across) * high, wide, high);
    } });
  };
  const ofPatches = callback => each => picture.kind === "patches" && callback(each, null);
  listenPatches(canvas, () => picture.grid, () => row ?? 0, { point: ofPatches(point), pinned: ofPatches(pinned) });
  const observer = new ResizeObserver(() => { if (picture) draw(); });
  observer.observe(box);
  return {
    fill(title, shown, scale, matched, set) {
      ({ plane } = shown);
      colors = scale;
      ({ picture } = shown.example);
      fill(title, shown, set);
      const patches = picture.kind === "patches", last = plane.rowTokens.length - 1;
      rows.fill(patches ? "Query" : "Words", plane.rowTokens, patches ? [0, last] : plane.rows, plane.key);
      markUnmatched(rows, matched.rows);
      Object.assign(canvas, { role: patches ? "application" : "img", tabIndex: patches ? 0 : -1,
        ariaLabel: patches ? `Patches of ${name}: hover or use the arrow keys to see the attention of a patch`
          : `Attention over image ${name}` });
    },
    select(at, marked) {
      ({ row } = at);
      rows.select(row, marked.pinned && row !== null, marked.here ? null : row ?? 0);
      draw();
      readout.replaceChildren(...row === null ? ["No equal token."] : describe(plane, { row, column: null }, PATCHES).nodes);
    },
    figure: themed => imageFigure([canvas], [""], themed),
    destroy: () => observer.disconnect(),
  };
}
