// The memory of a neural Turing machine over time: input, output, and the addressing weights of each head.

import { oneOf } from "../address.js";
import { colorScale, legend, STEPS } from "../color.js";
import { describe, exampleOf, scaleFor, scaleNote, themeColors } from "../context.js";
import { element, quotation, select } from "../dom.js";
import { matrixOf } from "../operands.js";
import { pin } from "../state.js";
import { number } from "../text.js";
import { timeline } from "../timeline.js";
import { drawnWeight, planeOf } from "../weights.js";

const MARKERS = 2; // input channels after the bits
const BIT = 12, HIGHEST = 14, LEAST = 3, ROOM = 400; // pixels: a bit, a location, and the locations of a head
const WIDEST = 24; // pixels of a step
const KINDS = {
  write_heads: { name: "Write head", verbs: ["writes to", "is written at"] },
  read_heads: { name: "Read head", verbs: ["reads from", "is read at"] },
};

export const memory = {
  name: "memory",
  label: "Memory",
  controls: ["scale", "curve"],
  standalone: true,
  keys: { locations: oneOf("all") },

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.memory),

  render(container, payload, state) {
    const example = exampleOf(payload, state), { memory: trace } = example;
    const tools = element("div", "", { className: "sorting" }),
      readout = element("div", "", { id: "readout", ariaLive: "polite" }),
      scale = element("div", "", { className: "scale" });
    container.append(readout);
    let panels = [];
    const locationOf = ({ panel, row }) => panels[panel].locations?.[row] ?? null;
    const map = timeline(container, {
      label: "Memory by step: arrow keys move between cells, Enter pins, plus and minus zoom, 0 shows everything",
      tell: cell => panels[cell.panel].tell(cell.row, cell.column),
      point: cell => state.set({ pointed: cell && { row: cell.column, column: locationOf(cell), cell } }),
      pinned: cell => pin(state, cell.column, locationOf(cell)),
    });
    container.append(scale);

    const draw = () => {
      const heads = headsOf(example), all = state.locations === "all";
      const locations = all ? [...example.texts[example.maps[0].columns].keys()] : trace.locations;
      panels = [...bitPanels(trace, themeColors(payload, state)),
        ...heads.map(each => weightPanel(each, locations, scaleFor(payload, state, each.map, each.head)))];
      const [steps] = trace.inputs.shape;
      map.show(panels, { name: "Step", from: 0, to: steps, unit: 1, first: 1, widest: WIDEST });
      tools.replaceChildren(select("Locations",
        [["", `in use (${trace.locations.length})`], ["all", `all (${example.texts[example.maps[0].columns].length})`]],
        all ? "all" : "", value => state.set({ locations: value })));
      scale.replaceChildren(legend(scaleFor(payload, state, heads[0].map, heads[0].head),
        scaleNote(payload, state)), element("span", "Bits are drawn from 0 to 1 in the same colors, outputs as the "
        + "probability of a 1; an orange square marks a wrong bit. Ctrl + wheel or + and − to zoom, click to pin.",
      { className: "note" }));
    };
    const update = changed => {
      if ([...changed].some(key => !["pointed", "row", "column"].includes(key))) draw();
      const [steps] = trace.inputs.shape, wanted = state.pointed ?? state;
      const step = wanted.row !== null && wanted.row < steps ? wanted.row : 0, location = wanted.column;
      const rows = panels.flatMap((panel, index) => {
        const row = panel.locations && location !== null ? panel.locations.indexOf(location) : -1;
        return row < 0 ? [] : [[index, row]];
      });
      map.select({ cell: state.pointed?.cell, time: [step, step + 1], rows });
      readout.replaceChildren(...description(example, step, location));
    };
    update(new Set(["view"]));
    return { update, tools, timeline: map, figure: () => map.figure(), destroy: () => map.destroy() };
  },
};

/** The heads that write, then those that read: { map, head, plane, name, verbs }. */
function headsOf(example) {
  return example.maps.flatMap(map => [...Array(map.heads).keys()].map(head => {
    const { name, verbs } = KINDS[map.layer] ?? KINDS.read_heads;
    return { map, head, verbs, name: map.heads > 1 ? `${name} ${head}` : name, plane: planeOf(example, map, head) };
  }));
}

function weightPanel({ plane, name, verbs }, locations, scale) {
  const steps = plane.height, values = new Float32Array(locations.length * steps);
  locations.forEach((location, i) => {
    for (let step = 0; step < steps; step++) values[i * steps + step] = drawnWeight(plane, step, location) * STEPS;
  });
  return { name, locations, labels: locations.map(String), values, scale, start: 0, step: 1, columns: steps,
    rowHeight: Math.max(LEAST, Math.min(HIGHEST, Math.floor(ROOM / locations.length))),
    tell: (row, step) => [`Step ${step + 1} ${verbs[0]} location ${locations[row]} `,
      number(plane.at(step, locations[row]))] };
}

/** The name of a channel, a bit or one of the markers after them. */
const named = (row, bits) => row < bits ? `bit ${row + 1}` : `marker ${row - bits + 1}`;

const shown = value => Number(value.toFixed(4)).toString().replace("-", "−");

/** The panels of input and output bits. */
function bitPanels({ inputs, outputs, targets, answer }, { ramp }) {
  const [input, output, target] = [inputs, outputs, targets].map(matrixOf), scale = colorScale(ramp, 1, "linear");
  const bits = input.columns - MARKERS, wrong = [];
  for (let step = answer; step < output.rows; step++)
    for (let bit = 0; bit < output.columns; bit++)
      if (output.at(step, bit) > 0.5 !== target.at(step, bit) > 0.5) wrong.push([bit, step]);
  const panel = (name, matrix, at, tell, dots = []) => {
    const values = new Float32Array(matrix.columns * matrix.rows);
    for (let bit = 0; bit < matrix.columns; bit++)
      for (let step = 0; step < matrix.rows; step++)
        values[bit * matrix.rows + step] = Math.min(1, Math.max(0, at(step, bit))) * STEPS;
    return { name, labels: [...Array(matrix.columns).keys()].map(bit => named(bit, bits)), values, scale, start: 0,
      step: 1, columns: matrix.rows, rowHeight: BIT, dots, tell: (row, step) => tell(step, row) };
  };
  return [
    panel("Input", input, input.at,
      (step, bit) => [`Step ${step + 1}, input ${named(bit, bits)}: ${shown(input.at(step, bit))}`]),
    panel("Output", output, (step, bit) => step < answer ? 0 : output.at(step, bit), (step, bit) => step < answer
      ? [`Step ${step + 1}: before the answer`]
      : [`Step ${step + 1}, output ${named(bit, bits)}: ${output.at(step, bit).toFixed(4)}, target `
        + `${shown(target.at(step, bit))}`], wrong),
  ];
}

/** The markers of an input, or its bits if it has none. */
function inputNodes(row, digits) {
  const bits = row.subarray(0, row.length - MARKERS), markers = [...row.subarray(row.length - MARKERS).entries()]
    .filter(([, value]) => value !== 0).map(([i, value]) => `${named(bits.length + i, bits.length)}${
      value === 1 ? "" : ` with value ${shown(value)}`}`);
  return markers.length ? [element("b", markers.join(", "))] : [quotation(digits(bits))];
}

/** Input and output of a step, and where each head writes and reads. */
function description(example, step, location) {
  const { inputs, outputs, targets, answer } = example.memory, [input, output, target] =
    [inputs, outputs, targets].map(matrixOf);
  const digits = row => [...row].map(value => value > 0.5 ? "1" : "0").join("");
  const bits = step < answer ? ["input ", ...inputNodes(input.row(step), digits)]
    : ["output ", quotation(digits(output.row(step))), ", target ", quotation(digits(target.row(step)))];
  return [element("p", "", {}, `Step ${step + 1}: `, ...bits),
    ...headsOf(example).map(({ name, plane, verbs }) => element("p", "", {}, ...describe(plane,
      { row: step, column: location }, { verbs, rowName: () => name, columnName: each => `location ${each}` }).nodes))];
}
