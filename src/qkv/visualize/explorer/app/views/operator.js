// The attention operator with the numbers of a real head, step by step: query, keys, scores, mask, weights, sum.

import { isInteger } from "../address.js";
import { fontOf, shortened } from "../axes.js";
import { current, exampleOf, themeColors } from "../context.js";
import { button, element, select } from "../dom.js";
import { decimal, operandsOf, STAGES } from "../operands.js";
import { spelled, visible } from "../text.js";

const MOST_KEYS = 32, PAUSE = 1800; // keys shown; milliseconds between steps
const POSITIVE = [51, 105, 232], NEGATIVE = [222, 110, 20];
const still = matchMedia("(prefers-reduced-motion: reduce)");

export const operator = {
  name: "operator",
  label: "Operator",
  keys: { stage: isInteger },

  accepts: (payload, state) => headsOf(exampleOf(payload, state)).length > 0,

  render(container, payload, state) {
    const example = exampleOf(payload, state);
    const tools = element("div", "", { className: "sorting" }), bar = element("div", "", { className: "stepper" });
    const table = element("div", "", { className: "operands", id: "operands", tabIndex: 0, role: "group",
      ariaLabel: "Steps of attention: left and right arrows change the step, up and down the key" });
    const text = element("div", "", { id: "explanation", ariaLive: "polite" }),
      scale = element("p", "", { className: "note", id: "operand-scale" });
    container.append(tools, bar, text, table, scale);
    let timer = 0, drawn = 0;
    const stage = () => Math.min(STAGES.length, Math.max(1, Number(state.stage) || 1));
    const go = to => state.set({ stage: String(Math.min(STAGES.length, Math.max(1, to))) });
    const stop = () => { clearInterval(timer); timer = 0; update(new Set()); };
    const play = () => {
      if (timer) return stop();
      if (stage() === STAGES.length) go(1);
      timer = setInterval(() => stage() < STAGES.length ? go(stage() + 1) : stop(), PAUSE);
      update(new Set());
    };
    table.addEventListener("keydown", event => {
      const { shown, key } = chosen(example, payload, state), at = shown.indexOf(key);
      const act = { ArrowRight: () => go(stage() + 1), ArrowLeft: () => go(stage() - 1), Home: () => go(1),
        End: () => go(STAGES.length), ArrowDown: () => state.set({ column: shown[Math.min(at + 1, shown.length - 1)] }),
        ArrowUp: () => state.set({ column: shown[Math.max(at - 1, 0)] }) }[event.key];
      if (!act || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    });

    function update(changed) {
      if (changed.size === 1 && changed.has("pointed")) return;
      const at = chosen(example, payload, state), step = stage();
      const focused = document.activeElement?.dataset?.stage ?? document.activeElement?.id;
      tools.replaceChildren(...choices(example, at, state));
      bar.replaceChildren(
        button("‹", () => go(step - 1), { id: "stage-previous", disabled: step === 1, ariaLabel: "Previous step" }),
        button("›", () => go(step + 1),
          { id: "stage-next", disabled: step === STAGES.length, ariaLabel: "Next step" }),
        button(timer ? "Pause" : "Play", play, { id: "stage-play", hidden: still.matches }),
        ...STAGES.map(([name], i) => {
          const stageButton = button(`${i + 1} ${name}`, () => go(i + 1), { className: i < step ? "done" : "" });
          stageButton.dataset.stage = String(i + 1);
          if (i + 1 === step) stageButton.setAttribute("aria-current", "step");
          return stageButton;
        }));
      if (focused) container.querySelector(`#${CSS.escape(focused)}, [data-stage="${CSS.escape(focused)}"]`)?.focus();
      const [, explanation, sentence] = STAGES[step - 1];
      const query = at.rows[at.query], key = at.columns[at.key];
      text.replaceChildren(element("p", explanation), element("p", sentence(at.operands, query, key, at.key),
        { className: "numbers" }));
      const peaks = peaksOf(at);
      drawTable(table, at, peaks, step, step > drawn, column => state.set({ column }));
      drawn = step;
      scale.textContent = [`Blue is positive, orange negative. Full color: ±${decimal(peaks.key)} in query and keys, `
        + `±${decimal(peaks.value)} in values and output.`,
      at.shown.some(key => !at.operands.allowed(key)) ? "Hatched keys are masked." : "",
      at.shown.length < at.operands.keys
        ? `Of ${at.operands.keys} keys, the ${at.shown.length} with the largest weights are shown.` : ""]
        .filter(Boolean).join(" ");
    }
    update(new Set(["view"]));
    return { update, destroy: () => clearInterval(timer), figure: () => {
      const { head } = chosen(example, payload, state), [name] = STAGES[stage() - 1];
      return figure(table, [`${head.layer}, head ${head.head}: step ${stage()}, ${name}`, scale.textContent],
        themeColors(payload, state));
    } };
  },
};

/** The recorded heads whose layer the page holds. */
const headsOf = example => (example?.operators ?? []).filter(head =>
  example.maps.some(map => map.layer === head.layer));

/** The selected head, query and key, and the indices of the keys to show. */
function chosen(example, payload, state) {
  const heads = headsOf(example), { map: wanted, head: number } = current(payload, state);
  const head = heads.find(each => each.layer === wanted.layer && each.head === number)
    ?? heads.find(each => each.layer === wanted.layer) ?? heads[0];
  const map = example.maps.find(each => each.layer === head.layer), rows = example.texts[map.rows],
    columns = example.texts[map.columns];
  const query = state.row !== null && state.row < rows.length ? state.row : rows.length - 1,
    operands = operandsOf(head, query);
  const order = [...columns.keys()].sort((a, b) => operands.weight(b) - operands.weight(a));
  const key = state.column !== null && state.column < columns.length ? state.column : order[0];
  const shown = [...new Set([key, ...order])].slice(0, MOST_KEYS).sort((a, b) => a - b);
  return { heads, head, rows, columns, query, key, operands, shown };
}

function choices(example, { heads, head, rows, query }, state) {
  const layers = [...new Set(heads.map(each => each.layer))], inLayer = heads.filter(each => each.layer === head.layer);
  return [
    layers.length > 1 && select("Layer", layers.map(layer => [layer, layer]), head.layer,
      layer => state.set({ layer })),
    inLayer.length > 1 && select("Head", inLayer.map(each => [each.head, `head ${each.head}`]), head.head,
      value => state.set({ head: Number(value) })),
    select("Query", rows.map((token, i) => [i, `${i + 1} ${visible(token)}`]), query,
      row => state.set({ row: Number(row), column: null })),
  ].filter(Boolean);
}

/** The largest absolute numbers of the vectors that are shown. */
function peaksOf({ operands, shown }) {
  const largest = vectors => Math.max(1e-9, ...vectors.map(each => each.reduce((a, b) => Math.max(a, Math.abs(b)), 0)));
  return { key: largest([operands.q, ...shown.map(operands.k)]),
    value: largest([operands.output, ...shown.map(operands.v)]) };
}

/** Draw the table of a step; `enter` animates what the step adds. */
function drawTable(table, { operands, columns, rows, query, key, shown }, peaks, step, enter, choose) {
  const cell = (stage, name, child, i = 0) => {
    const span = element("span", "", { className: `cell ${name}` }, step >= stage && child !== null ? child : "");
    if (enter && step === stage) {
      span.classList.add("enter");
      span.style.animationDelay = `${Math.min(40 * i, 600)}ms`;
    }
    return span;
  };
  const titles = [["Token", 1], ["Key", 2], ["Score", 3], ["Weight", 5], ["Value", 6]];
  const head = element("div", "", { className: "operand-row head" },
    ...titles.map(([name, first]) => element("span", first <= step ? name : "", { className: "cell" })));
  const line = (className, ...cells) => element("div", "", { className: `operand-row ${className}` }, ...cells);
  const lines = shown.map((j, i) => {
    const visibleKey = operands.allowed(j), weight = operands.weight(j);
    const score = step >= 4 && !visibleKey ? "−∞" : decimal(operands.score(j));
    const track = element("span", "", { className: "track" }, element("span", "", { className: "fill" }));
    track.firstChild.style.width = `${100 * weight}%`;
    const value = strip(operands.v(j), peaks.value);
    const keyRow = line(`key${j === key ? " chosen" : ""}${step >= 4 && !visibleKey ? " masked" : ""}`,
      element("span", "", { className: "cell token", dir: "auto" }, ...spelled(columns[j])),
      cell(2, "vector", strip(operands.k(j), peaks.key), i), cell(3, "score", score, i),
      cell(5, "weight", element("span", "", { className: "share" },
        step >= 4 && !visibleKey ? "masked" : decimal(weight), track), i),
      cell(6, "vector", value, i));
    keyRow.dataset.key = String(j);
    keyRow.addEventListener("click", () => choose(j));
    return keyRow;
  });
  const rowsShown = shown.flatMap((j, i) => [...hiddenKeys(operands, i ? shown[i - 1] + 1 : 0, j, step), lines[i]]);
  rowsShown.push(...hiddenKeys(operands, shown.at(-1) + 1, operands.keys, step));
  const blank = () => element("span", "", { className: "cell" });
  table.replaceChildren(
    line("query", element("span", "Query ", { className: "cell token" }, element("bdi", visible(rows[query]))),
      cell(1, "vector", strip(operands.q, peaks.key)), blank(), blank(), blank()),
    head, ...rowsShown,
    line("output", element("span", step >= 6 ? "Output" : "", { className: "cell token" }), blank(), blank(), blank(),
      cell(6, "vector", strip(operands.output, peaks.value), lines.length)));
}

/** A row instead of the keys from `first` to `last`, which are not shown; none if there are no such keys. */
function hiddenKeys(operands, first, last, step) {
  const count = last - first;
  if (!count) return [];
  const weight = Array.from({ length: count }, (_, i) => operands.weight(first + i)).reduce((a, b) => a + b, 0);
  return [element("div", `${count} ${count === 1 ? "key" : "keys"}${
    step >= 5 ? ` with weight ${decimal(weight)}` : ""} hidden`, { className: "operand-row hidden-keys" })];
}

/** A vector as a strip of cells. */
function strip(values, peak) {
  const canvas = element("canvas", "", { width: values.length, height: 1, className: "strip", role: "img",
    ariaLabel: `${values.length} numbers` }), context = canvas.getContext("2d");
  values.forEach((value, i) => {
    context.fillStyle = `rgba(${value < 0 ? NEGATIVE : POSITIVE}, ${Math.min(1, Math.abs(value) / peak)})`;
    context.fillRect(i, 0, 1, 1);
  });
  return canvas;
}

/** The table as it is on the page, between a title and a note. */
function figure(table, [title, note], { ink, paper }) {
  for (const cell of table.querySelectorAll(".enter")) cell.classList.remove("enter"); // an animation moves them
  const origin = table.getBoundingClientRect(), top = 32, measure = document.createElement("canvas").getContext("2d");
  const boxOf = part => {
    const { x, y, width, height } = part.getBoundingClientRect();
    return { x: x - origin.x + 8, y: y - origin.y + top, w: width, h: height };
  };
  const text = (part, words, atEnd = false) => {
    const { x, y, w, h } = boxOf(part), { color, fontSize, paddingLeft } = getComputedStyle(part),
      size = parseFloat(fontSize), left = x + parseFloat(paddingLeft);
    measure.font = fontOf(size);
    return { type: "text", x: atEnd ? x + w : left, y: y + h / 2, text: shortened(measure, words, w).text, size,
      anchor: atEnd ? "end" : "start", fill: color };
  };
  const bar = part => ({ type: "rect", ...boxOf(part), fill: getComputedStyle(part).backgroundColor });
  const cells = [...table.querySelectorAll(".cell")].filter(cell => cell.textContent || cell.querySelector("canvas"));
  const items = cells.flatMap(cell => {
    const canvas = cell.querySelector("canvas"), track = cell.querySelector(".track");
    if (canvas) return [{ type: "rect", ...boxOf(canvas), fill: paper }, { type: "image", ...boxOf(canvas), canvas }];
    const isNumber = cell.matches(".key .score"), words = visible(cell.textContent);
    const bars = track?.clientWidth ? [track, track.firstChild].map(bar) : []; // none on a phone
    return [track ? text(cell.querySelector(".share"), words) : text(cell, words, isNumber), ...bars];
  });
  const hidden = [...table.querySelectorAll(".hidden-keys")].map(part => text(part, part.textContent));
  const line = (y, words, bold) => ({ type: "text", x: 8, y, text: words, size: 12, anchor: "start", fill: ink, bold });
  measure.font = fontOf(12);
  return { width: Math.max(origin.width, measure.measureText(note).width) + 16, height: top + origin.height + 32,
    items: [line(14, title, true), ...items, ...hidden, line(top + origin.height + 18, note)] };
}
