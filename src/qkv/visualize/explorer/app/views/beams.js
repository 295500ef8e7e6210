// The hypotheses of a beam search with their scores and alignments, and the tree of what the search kept.

import { legend } from "../colour.js";
import { describe, exampleOf, scaleFor, themeColours } from "../context.js";
import { element, listbox, mark, option, select } from "../dom.js";
import { heatMap } from "../heatmap.js";
import { selection } from "../state.js";
import { clipped, quoted, visible } from "../text.js";
import { planeOf } from "../weights.js";

const STEP = 92, ROW = 26, TOP = 22; // pixels
const SVG = "http://www.w3.org/2000/svg";
const NOTE = "Columns are steps, best candidate first; the selected hypothesis is marked. Scores are log-probabilities "
  + "divided by the length (to the power of the length penalty), end token included.";

export const beams = {
  name: "beams",
  label: "Beam search",
  controls: ["curve"],

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.beams),

  render(container, payload, state) {
    const { beams: search } = exampleOf(payload, state),
      heading = element("span", "Hypotheses", { className: "label", id: "hypotheses-label" });
    const list = element("div", "", { id: "hypotheses", role: "listbox" });
    list.setAttribute("aria-labelledby", "hypotheses-label");
    const tools = element("div", "", { className: "sorting" }),
      tree = element("div", "", { className: "tree", tabIndex: 0 });
    const note = element("p", NOTE, { className: "note" }),
      readout = element("p", "", { id: "readout", ariaLive: "polite" });
    const scale = element("div", "", { className: "scale" });
    list.append(...search.hypotheses.map((each, i) =>
      option(i, element("span", String(i + 1), { className: "rank" }), element("bdi", clipped(each.text)),
        element("span", signed(each.score), { className: "value" }))));
    const choose = index => state.set({ hypothesis: String(index), pointed: null });
    listbox(list, { chosen: choose });
    list.addEventListener("focusin", event => choose(Number(event.target.dataset.index)));
    container.append(heading, list, element("span", "Search tree", { className: "label" }), tools, tree, note, readout);
    const map = heatMap(container, {
      label: "Alignment of the hypothesis: arrow keys move between cells",
      point: (row, column) => state.set({ pointed: row === null ? null : { row, column } }), pinned: () => {},
    });
    container.append(scale);

    const update = changed => {
      const index = Math.min(Number(state.hypothesis) || 0, search.hypotheses.length - 1),
        hypothesis = search.hypotheses[index];
      if ([...changed].some(key => key !== "pointed")) {
        mark(list, index);
        tools.replaceChildren(select("Candidates", [["", "kept and finished"], ["all", "also those dropped"]],
          state.candidates ?? "", candidates => state.set({ candidates })));
        const path = pathTo(search, search.leaves[index]), layout = layOut(search, state.candidates === "all");
        tree.replaceChildren(drawTree(search, layout, path, text => { readout.textContent = text; }));
        const tokens = [...path].reverse().map(node => quoted(search.nodes[node].token)).join(" ");
        tree.ariaLabel = `Search tree with ${search.nodes.length} candidates; the hypothesis is ${tokens}`;
        if (hypothesis.maps.length) {
          const [layer] = hypothesis.maps, plane = planeOf(hypothesis, layer, layer.heads === 1 ? 0 : "average");
          const colours = scaleFor(payload, state, layer, layer.heads === 1 ? 0 : "average", hypothesis);
          map.show(plane, colours);
          const heads = layer.heads > 1 ? ", average of heads" : "";
          scale.replaceChildren(legend(colours, `alignment of hypothesis ${index + 1}, layer ${layer.layer}${heads}`));
        }
      }
      if (!hypothesis.maps.length) return;
      const [layer] = hypothesis.maps, plane = planeOf(hypothesis, layer, layer.heads === 1 ? 0 : "average");
      if (!plane.height) return;
      const at = selection({ ...state, row: null, column: null }, plane);
      map.select(at, true);
      readout.replaceChildren(...describe(plane, at).nodes);
    };
    update(new Set(["view"]));
    return { update, heatMap: map, destroy: () => map.destroy(),
      figure: () => treeFigure(search, state, themeColours(payload, state)) };
  },
};

const signed = value => value === null ? "" : value.toFixed(3).replace("-", "−");

/** Nodes from a leaf to the first token. */
function pathTo(search, leaf) {
  const path = new Set();
  for (let node = leaf; node >= 0; node = search.nodes[node].parent) path.add(node);
  return path;
}

/** Places of the shown nodes, { x, y } by index: steps from left to right, candidates from the best downwards. */
function layOut({ nodes }, all) {
  const places = new Map(), filled = [];
  nodes.forEach((node, i) => {
    if (!all && !node.kept && node.score === null) return;
    const row = filled[node.step] ?? 0;
    filled[node.step] = row + 1;
    places.set(i, { x: 8 + node.step * STEP, y: TOP + row * ROW });
  });
  return { places, width: 16 + filled.length * STEP,
    height: TOP + Math.max(0, ...filled.map(count => count ?? 0)) * ROW + 8 };
}

const edge = (from, to) =>
  `M${from.x + STEP - 18},${from.y + 10} C${to.x - 8},${from.y + 10} `
  + `${from.x + STEP - 8},${to.y + 10} ${to.x},${to.y + 10}`;

const detail = ({ token, log_p, score, kept }) => `${quoted(token)}: log-probability ${signed(log_p)}, `
  + (score !== null ? `finished with score ${signed(score)}` : kept ? "kept" : "dropped");

function drawTree({ nodes }, { places, width, height }, path, tell) {
  const make = (tag, attributes, parent) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
    return made;
  };
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ width, height, "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (let step = 0; 8 + step * STEP < width - 8; step++)
    make("text", { x: 8 + step * STEP, y: 12, class: "step" }, svg).textContent = String(step + 1);
  for (const [i, place] of places) {
    const parent = places.get(nodes[i].parent);
    if (parent) make("path", { d: edge(parent, place), class: path.has(i) ? "chosen" : "" }, svg);
  }
  for (const [i, place] of places) {
    const node = nodes[i],
      kind = path.has(i) ? "chosen" : node.score !== null ? "finished" : node.kept ? "" : "dropped";
    const group = make("g", { class: `node ${kind}`, transform: `translate(${place.x} ${place.y})` }, svg);
    make("rect", { width: STEP - 18, height: 20, rx: 4 }, group);
    make("text", { x: 6, y: 14 }, group).textContent = clipped(visible(node.token), 8);
    if (node.score !== null) make("text", { x: STEP - 22, y: 14, class: "score" },
      group).textContent = node.score.toFixed(2).replace("-", "−");
    make("title", {}, group).textContent = detail(node);
    group.addEventListener("pointerenter", () => tell(detail(node)));
  }
  return svg;
}

function treeFigure(search, state, { ink, ramp, paper }) {
  const index = Math.min(Number(state.hypothesis) || 0, search.hypotheses.length - 1),
    path = pathTo(search, search.leaves[index]);
  const { places, width, height } = layOut(search, state.candidates === "all"), accent = ramp[ramp.length - 3],
    items = [];
  for (const [i, place] of places) {
    const parent = places.get(search.nodes[i].parent);
    if (parent) items.push({ type: "path", d: edge(parent, place), stroke: path.has(i) ? accent : ink,
      opacity: path.has(i) ? 1 : 0.3, width: path.has(i) ? 2 : 1 });
  }
  for (const [i, { x, y }] of places) {
    const node = search.nodes[i];
    items.push({ type: "rect", x, y, w: STEP - 18, h: 20, fill: paper, stroke: path.has(i) ? accent : ink },
      { type: "text", x: x + 6, y: y + 10, text: clipped(visible(node.token), 8), size: 12, anchor: "start",
        fill: ink });
    if (node.score !== null) items.push({ type: "text", x: x + STEP - 22, y: y + 10, text: node.score.toFixed(2),
      size: 10, anchor: "end", fill: ink });
  }
  return { width, height, items };
}
