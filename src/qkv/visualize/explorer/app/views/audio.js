// The alignment of a transcript over the log-mel spectrogram of its recording, with the time in seconds.

import { oneOf } from "../address.js";
import { tokenChips } from "../chips.js";
import { colorScale, legend, STEPS } from "../color.js";
import { describe, exampleOf, isDark, scaleNote, selected } from "../context.js";
import { element, quotation, select } from "../dom.js";
import { headStrip } from "../heads.js";
import { pin, selection } from "../state.js";
import { number, visible } from "../text.js";
import { timeline } from "../timeline.js";
import { bytes, drawnWeight } from "../weights.js";

const ROW = 18, LEAST = 13, ROOM = 640, SPECTROGRAM = 160; // pixels: a token, and the heights of the panels
const GRAYS = { light: ["#fcfcfd", "#1d2029"], dark: ["#101319", "#e8eaf1"] };
const STRONGEST = 0.6; // opacity of the attention over the spectrogram
const WIDEST = 600; // pixels of a second
const WORDS = { columnName: time => `${time} s` };

export const audio = {
  name: "audio",
  label: "Audio",
  controls: ["layer", "scale", "curve"],
  standalone: true,
  keys: { rows: oneOf("words") },

  accepts: (payload, state) => Boolean(exampleOf(payload, state)?.audio),

  render(container, payload, state) {
    const example = exampleOf(payload, state), sound = spectrogramOf(example.audio), attends = example.maps.length > 0;
    const readout = element("p", "", { id: "readout", ariaLive: "polite" }),
      tools = element("div", "", { className: "sorting" }), scale = element("div", "", { className: "scale" });
    const point = (row, column) => state.set({ pointed: row === null && column === null ? null : { row, column } });
    const heads = attends ? headStrip(container, payload, state) : null;
    const tokens = attends ? tokenChips(container, { id: "rows", leave: () => point(null, null),
      point: row => point(row, null), pinned: row => pin(state, row, null) }) : null;
    container.append(readout);
    let panels = [], words = [];
    /** The token and the column of the attention weights of a cell; a cell of the spectrogram has no token. */
    const tokenAt = ({ panel, row, column }) => panels[panel].words
      ? { row: words[row].tokens[0], column } : { row: null, column: columnAt(example, column) };
    const map = timeline(container, {
      label: "Alignment and spectrogram: arrow keys move between cells, Enter pins, plus and minus zoom, 0 shows all",
      tell: cell => panels[cell.panel].tell(cell.row, cell.column),
      point: cell => state.set({ pointed: cell && { ...tokenAt(cell), cell } }),
      pinned: cell => { const { row, column } = tokenAt(cell); pin(state, row, column); },
    });
    container.append(scale);
    const shownPlane = () => {
      const { plane, scale: colors, map: layer } = selected(payload, { ...state, special: "shown" });
      return { plane, colors, layer };
    };

    const draw = () => {
      const { audio: { start, end, frame } } = example;
      const spectrum = spectrogramPanel(sound, example.audio, isDark(state) ? GRAYS.dark : GRAYS.light);
      panels = [spectrum];
      if (attends) {
        const { plane, colors } = shownPlane();
        heads.update();
        words = state.rows === "words" ? wordsOf(plane.rowTokens)
          : plane.rows.map(row => ({ text: plane.rowTokens[row], tokens: [row] }));
        tokens.fill("Transcript", plane.rowTokens, plane.rows, plane.key);
        panels = [alignmentPanel(plane, words, colors, example.audio), spectrum];
        tools.replaceChildren(select("Rows", [["", "tokens"], ["words", "words: the average of their tokens"]],
          state.rows === "words" ? "words" : "", rows => state.set({ rows })));
        scale.replaceChildren(legend(colors, scaleNote(payload, state)));
      } else scale.replaceChildren(element("p", "The transcript is empty.", { className: "note" }));
      scale.append(element("span", "The spectrogram is drawn from the lowest value of the recording to the highest, "
        + "low frequencies at the bottom; blue marks the attention of the selected row. Ctrl + wheel or + and − to "
        + "zoom, click to pin.", { className: "note" }));
      const last = Math.max(...panels.map(each => each.start + each.columns * each.step));
      map.show(panels, { name: "Time in seconds", from: start, to: Math.max(last, Math.min(end, last + frame)),
        unit: 0.01, first: 0, widest: WIDEST });
    };
    const update = changed => {
      if ([...changed].some(key => !["pointed", "row", "column"].includes(key))) draw();
      if (!attends) {
        const cell = state.pointed?.cell;
        readout.replaceChildren(...cell ? panels[0].tell(cell.row, cell.column) : []);
        return map.select({ cell });
      }
      const { plane, colors } = shownPlane(), { row, column } = selection(state, plane),
        { column: seconds, start } = example.audio;
      const word = words.findIndex(each => each.tokens.includes(row));
      const strength = key =>
        STRONGEST * Math.min(1, wordWeight(plane, words[word], key) / colors.peak) ** colors.power;
      map.select({
        cell: state.pointed?.cell,
        time: column === null ? null : [start + column * seconds, start + (column + 1) * seconds],
        rows: word < 0 ? [] : [[0, word]],
        shade: word < 0 ? null : { panel: 1, start, step: seconds, strengths: plane.columns.map(strength) },
      });
      tokens.shade(column === null ? null : token => drawnWeight(plane, token, column), colors);
      tokens.select(row, row !== null && state.row === row, state.pointed === null ? row : null);
      readout.replaceChildren(...words[word]?.tokens.length > 1 ? wordNodes(plane, words[word], column)
        : describe(plane, { row, column }, WORDS).nodes);
    };
    update(new Set(["view"]));
    return { update, tools, timeline: map, figure: () => map.figure(), destroy: () => map.destroy() };
  },
};

/** The column of the attention weights at a frame of the spectrogram. */
function columnAt({ audio: { frame, column }, maps, texts }, at) {
  return maps.length ? Math.min(texts[maps[0].columns].length - 1, Math.floor((at + 0.5) * frame / column)) : null;
}

/** Decode the spectrogram: `at(frame, band)` is a value of the features. */
function spectrogramOf({ shape: [frames, bands], low, high, values }) {
  const all = bytes(values);
  return { frames, bands, share: (frame, band) => all[frame * bands + band] / 255,
    at: (frame, band) => low + (high - low) * all[frame * bands + band] / 255 };
}

function spectrogramPanel({ frames, bands, share, at }, { start, frame }, ramp) {
  const values = new Float32Array(frames * bands), bandOf = row => bands - 1 - row; // low frequencies at the bottom
  for (let row = 0; row < bands; row++)
    for (let j = 0; j < frames; j++) values[row * frames + j] = share(j, bandOf(row)) * STEPS;
  return { name: "Log-mel spectrogram", labels: Array.from({ length: bands }, () => ""), values, start, step: frame,
    columns: frames, rowHeight: SPECTROGRAM / bands, scale: colorScale(ramp, 1, "linear"),
    tell: (row, j) => [`${(start + j * frame).toFixed(2)} s, mel band ${bandOf(row) + 1} of ${bands}: `
      + at(j, bandOf(row)).toFixed(2).replace("-", "−")] };
}

/** Words of tokens, [{ text, tokens }]: a word begins at a space, and spaces alone are left out. */
function wordsOf(tokens) {
  const words = [];
  let open = false;
  tokens.forEach((token, index) => {
    if (!token.trim()) open = false;
    else {
      if (!open || /^\s/.test(token)) words.push({ text: "", tokens: [] });
      Object.assign(words.at(-1), { text: words.at(-1).text + token.trim(), tokens: [...words.at(-1).tokens, index] });
      open = !/\s$/.test(token);
    }
  });
  return words;
}

/** The average weight of the tokens of a word. */
const wordWeight = (plane, { tokens }, column) =>
  tokens.reduce((sum, token) => sum + drawnWeight(plane, token, column), 0) / tokens.length;

function alignmentPanel(plane, words, scale, { start, column }) {
  const wide = plane.width, values = new Float32Array(words.length * wide);
  words.forEach((word, i) => {
    for (let j = 0; j < wide; j++) values[i * wide + j] = wordWeight(plane, word, j) * STEPS;
  });
  const weight = (word, j) => word.tokens.length === 1 ? plane.at(word.tokens[0], j)
    : { value: wordWeight(plane, word, j), stored: true };
  return { name: "Alignment", words: true, labels: words.map(({ text }) => visible(text.trim() || text)), values, scale,
    start, step: column, columns: wide, rowHeight: Math.max(LEAST, Math.min(ROW, Math.floor(ROOM / words.length))),
    tell: (row, j) => [quotation(visible(words[row].text)), ` attends to ${plane.columnTokens[j]} s `,
      number(weight(words[row], j))] };
}

/** The largest average weights of a word, or the one at a time. */
function wordNodes(plane, word, column) {
  const averaged = { ...plane, rowTokens: [word.text], rows: [0],
    at: (row, key) => ({ value: wordWeight(plane, word, key), stored: true }) };
  return describe(averaged, { row: 0, column }, WORDS).nodes;
}
