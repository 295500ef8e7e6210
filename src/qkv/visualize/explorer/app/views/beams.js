// The hypotheses of a beam search with their scores and alignments, and the tree of what the search kept.

import { isInteger, oneOf } from "../address.js";
import { fontOf } from "../axes.js";
import { legend } from "../color.js";
import { describe, exampleOf, scaleFor, themeColors } from "../context.js";
import { element, listbox, mark, option, select } from "../dom.js";
import { heatMap } from "../heatmap.js";
import { selection } from "../state.js";
import { clipped, quoted, visible } from "../text.js";
import { planeOf } from "../weights.js";

const ROW = 26, TOP = 22, EDGE = 26, FONT = 13, SMALL = 11; // pixels
const LONGEST = 24; // characters of a token
const SVG = "http://www.w3.org/2000/svg";
const NOTE = "Columns are steps, best candidate first; the selected hypothesis is marked. Scores are log-probabilities "
  + "divided by the length (to the power of the length penalty), end token included.";

export const beams = {
  name: "beams",
  label: "Beam search",
  aliases: ["beam-search"],
  controls: ["curve"],
  keys: { candidates: oneOf("all"), hypothesis: isInteger },

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
          const colors = scaleFor(payload, state, layer, layer.heads === 1 ? 0 : "average", hypothesis);
          map.show(plane, colors);
          const heads = layer.heads > 1 ? ", average of heads" : "";
          scale.replaceChildren(legend(colors, `alignment of hypothesis ${index + 1}, layer ${layer.layer}${heads}`));
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
      figure: () => treeFigure(search, state, themeColors(payload, state)) };
  },
};

const signed = value => value === null ? "" : value.toFixed(3).replace("-", "−");

/** Nodes from a leaf to the first token. */
function pathTo(search, leaf) {
  const path = new Set();
  for (let node = leaf; node >= 0; node = search.nodes[node].parent) path.add(node);
  return path;
}

const labelOf = node => clipped(visible(node.token), LONGEST);
const scoreOf = node => node.score === null ? "" : node.score.toFixed(2).replace("-", "−");

/**
 * Places of the shown nodes, { x, y, w } by index: steps from left to right, each as wide as its longest token with its
 * score; candidates from the best downwards.
 */
function layOut({ nodes }, all) {
  const boxes = new Map(), filled = [], widths = [], measure = document.createElement("canvas").getContext("2d");
  const widthOf = (text, size) => {
    measure.font = fontOf(size);
    return measure.measureText(text).width;
  };
  nodes.forEach((node, i) => {
    if (!all && !node.kept && node.score === null) return;
    const row = filled[node.step] ?? 0, score = scoreOf(node);
    filled[node.step] = row + 1;
    const w = Math.ceil(12 + widthOf(labelOf(node), FONT) + (score ? 10 + widthOf(score, SMALL) : 0));
    widths[node.step] = Math.max(widths[node.step] ?? 40, w);
    boxes.set(i, { step: node.step, y: TOP + row * ROW });
  });
  const lefts = [];
  let x = 8;
  for (let step = 0; step < filled.length; step++) {
    lefts.push(x);
    x += (widths[step] ?? 40) + EDGE;
  }
  for (const box of boxes.values()) Object.assign(box, { x: lefts[box.step], w: widths[box.step] });
  return { boxes, lefts, width: x - EDGE + 8,
    height: TOP + Math.max(0, ...filled.map(count => count ?? 0)) * ROW + 8 };
}

function edge(from, to) {
  const [start, middle] = [from.x + from.w, (from.x + from.w + to.x) / 2];
  return `M${start},${from.y + 10} C${middle},${from.y + 10} ${middle},${to.y + 10} ${to.x},${to.y + 10}`;
}

const detail = ({ token, log_p, score, kept }) => `${quoted(token)}: log-probability ${signed(log_p)}, `
  + (score !== null ? `finished with score ${signed(score)}` : kept ? "kept" : "dropped");

function drawTree({ nodes }, { boxes, lefts, width, height }, path, tell) {
  const make = (tag, attributes, parent) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    parent.append(node);
    return node;
  };
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ width, height, "aria-hidden": "true" })) svg.setAttribute(name, value);
  lefts.forEach((x, step) => { make("text", { x, y: 12, class: "step" }, svg).textContent = String(step + 1); });
  for (const [i, box] of boxes) {
    const parent = boxes.get(nodes[i].parent);
    if (parent) make("path", { d: edge(parent, box), class: path.has(i) ? "chosen" : "" }, svg);
  }
  for (const [i, box] of boxes) {
    const node = nodes[i],
      kind = path.has(i) ? "chosen" : node.score !== null ? "finished" : node.kept ? "" : "dropped";
    const group = make("g", { class: `node ${kind}`, transform: `translate(${box.x} ${box.y})` }, svg);
    make("rect", { width: box.w, height: 20, rx: 4 }, group);
    make("text", { x: 6, y: 14, class: "name" }, group).textContent = labelOf(node);
    if (node.score !== null) make("text", { x: box.w - 6, y: 14, class: "score" }, group).textContent = scoreOf(node);
    make("title", {}, group).textContent = detail(node);
    group.addEventListener("pointerenter", () => tell(detail(node)));
  }
  return svg;
}

function treeFigure(search, state, { ink, ramp, paper }) {
  const index = Math.min(Number(state.hypothesis) || 0, search.hypotheses.length - 1),
    path = pathTo(search, search.leaves[index]);
  const { boxes, width, height } = layOut(search, state.candidates === "all"), accent = ramp[ramp.length - 3],
    items = [];
  for (const [i, box] of boxes) {
    const parent = boxes.get(search.nodes[i].parent);
    if (parent) items.push({ type: "path", d: edge(parent, box), stroke: path.has(i) ? accent : ink,
      opacity: path.has(i) ? 1 : 0.3, width: path.has(i) ? 2 : 1 });
  }
  for (const [i, { x, y, w }] of boxes) {
    const node = search.nodes[i];
    items.push({ type: "rect", x, y, w, h: 20, fill: paper, stroke: path.has(i) ? accent : ink },
      { type: "text", x: x + 6, y: y + 10, text: labelOf(node), size: 12, anchor: "start", fill: ink });
    if (node.score !== null) items.push({ type: "text", x: x + w - 6, y: y + 10, text: scoreOf(node), size: 10,
      anchor: "end", fill: ink });
  }
  return { width, height, items };
}
