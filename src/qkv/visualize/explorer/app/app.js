// The application: header, examples, tabs of views, controls, export and footer.

import { ignoredKeys, viewName } from "./address.js";
import { scoreText } from "./candidates.js";
import { current, exampleOf, hasSeveralHeads, layersOf, SCALES } from "./context.js";
import { isDark, onSystemTheme, themeColors } from "./context.js";
import { button, byId, element, listbox, mark, option, select } from "./dom.js";
import { download, toCanvas, toSvg } from "./export.js";
import { headName } from "./heads.js";
import { showPredictions } from "./predictions.js";
import { SERVER_KEYS, serverForm } from "./server.js";
import { createState, permalink } from "./state.js";
import { clipped, LONGEST_TEXT, LONGEST_TOKEN, visible } from "./text.js";
import { VIEWS } from "./views/index.js";

const LONGEST_LINE = 120; // characters of a source and an output on one line
const payload = JSON.parse(byId("data").textContent), state = createState();
byId("data").textContent = ""; // frees the memory of the text
const withSpecial = new Proxy(state, { get: (all, key) => key === "special" ? "shown" : all[key] }); // no such control
let shown = null; // the rendered view: { view, handle, example }

const CONTROLS = {
  layer: () => {
    const { example, map } = current(payload, state);
    if (example.maps.length <= 1) return null;
    return select("Layer", layersOf(example).map(each => [each.layer, clipped(each.layer, LONGEST_TOKEN)]), map.layer,
      layer => state.set({ layer, row: null, column: null }));
  },
  head: () => {
    const { map, head } = current(payload, state);
    if (map.heads <= 1) return null;
    const heads = [["average", "average"], ...[...Array(map.heads).keys()].map(each => [each, `head ${each}`])];
    return select("Head", heads, head, value => state.set({ head: value === "average" ? value : Number(value) }));
  },
  special: () => !hasSpecial() ? null
    : select("Special tokens",
      [["shown", "shown"], ["hidden", "hidden"], ["renormalized", "hidden, rows rescaled to 1"]], state.special,
      special => state.set({ special })),
  scale: () => {
    // A comparison is of two heads at least.
    if (shown?.view.name !== "compare" && !hasSeveralHeads(exampleOf(payload, state))) return null;
    return select("Color scale", Object.entries(SCALES), state.scale,
      scale => state.set({ scale }));
  },
  curve: () =>
    select("Color curve", [["", "automatic"], ["linear", "linear"], ["root", "square root"]], state.curve,
      curve => state.set({ curve })),
};

/** Whether the selected layer has special tokens; of all heads, whether any layer has. */
function hasSpecial() {
  const { example, map } = current(payload, state), all = shown?.view.name === "model" ? example.maps : [map];
  const tokens = all.filter(Boolean).flatMap(each => [example.texts[each.rows], example.texts[each.columns]]);
  return example.special.some(token => tokens.some(each => each.includes(token)));
}

function showHeader() {
  byId("title").textContent = payload.title;
  const facts = [["Model", payload.model], ["Command", payload.command],
    ["qkv", payload.qkv]].filter(([, value]) => value);
  byId("facts").replaceChildren(...facts.map(([name, value]) =>
    element("div", "", { className: name === "Command" ? "command" : "" }, element("dt", name),
      element("dd", clipped(value), { title: clipped(value) }),
      ...name === "Command" ? [button("Copy", () => copy(value, "The command is copied."), { id: "copy-command" })]
        : [])));
  showNotes();
}

/** Notes on the page, and why the selected example has no view of the operator. */
function showNotes() {
  const notes = [...payload.notes, exampleOf(payload, state)?.operator_note].filter(Boolean);
  byId("notes").replaceChildren(...notes.map(note => element("p", note)));
}

/** Whether the examples are of several models. */
const severalModels = () => new Set(payload.examples.map(example => example.model)).size > 1;

function showExamples() {
  byId("examples").replaceChildren(...payload.examples.map((example, i) =>
    option(i, element("span", clipped(example.source), { className: "from", dir: "auto" }),
      element("span", clipped(example.text), { dir: "auto" }),
      ...severalModels() ? [element("span", clipped(example.model), { className: "from" })] : [])));
  byId("filter").hidden = payload.examples.length <= 12;
  byId("picker").hidden = payload.examples.length <= 1;
  byId("columns").classList.toggle("single", payload.examples.length <= 1);
}

/** Copy a text, and say so. */
async function copy(text, done) {
  await navigator.clipboard?.writeText(text).catch(() => {});
  byId("status").textContent = done;
}

function showExample() {
  const example = exampleOf(payload, state),
    [source, text] = [example.source, example.text].map(whole => clipped(whole));
  document.title = example.window_title;
  mark(byId("examples"), state.example);
  // Long texts are separate blocks, each with its own number of lines.
  byId("heading").classList.toggle("long", source.length + text.length > LONGEST_LINE);
  byId("heading").replaceChildren(
    element("span", "", { className: `source ${text ? "from" : ""}`, title: source }, element("bdi", source)),
    ...text ? [element("span", " → ", { className: "from arrow" }),
      element("span", "", { className: "target", title: text }, element("bdi", text))] : []);
  const parts = [
    severalModels() ? clipped(example.model) : "",
    example.maps.length === 1 ? `layer ${clipped(example.maps[0].layer, LONGEST_TOKEN)}` : "",
    example.predictions.length ? "" : scoreText(example),
    ...example.episode ? example.notes : [], // whether the prediction is correct
  ].filter(Boolean).map(part => [part]);
  if (example.unknown.length) parts.push(["out of vocabulary: ", ...outOfVocabulary(example.unknown)]);
  byId("meta").replaceChildren(...parts.flatMap((part, i) => i ? [" · ", ...part] : part));
  const notes = example.episode ? [] : example.notes;
  byId("example-notes").replaceChildren(...notes.map(note => element("li", clipped(note))));
  byId("example-notes").hidden = !notes.length;
  showPredictions(byId("predictions"), payload, state);
  showNotes();
  byId("layer-keys").hidden = example.maps.length <= 1;
  byId("head-keys").hidden = example.maps.every(map => map.heads <= 1);
}

/** Empty what shows an example. */
function showNoExample() {
  document.title = payload.title;
  for (const part of ["heading", "meta", "example-notes", "predictions"]) byId(part).replaceChildren();
  byId("example-notes").hidden = byId("predictions").hidden = true;
}

/** The unknown tokens, each quoted with its own direction; as many as fit. */
function outOfVocabulary(tokens) {
  const nodes = [];
  let length = 0;
  for (const token of tokens) {
    length += Math.min(token.length, LONGEST_TOKEN);
    if (length > LONGEST_TEXT) return [...nodes, " …"];
    nodes.push(...nodes.length ? [" "] : [], "“", element("bdi", visible(token)), "”");
  }
  return nodes;
}

/** Why there is nothing to show, or "". */
function silence() {
  const { example, map } = current(payload, state);
  if (!example) return payload.server ? "" : "This page has no examples.";
  if (VIEWS.some(view => view.accepts(payload, state) && view.standalone)) return "";
  if (!map) return "No attention weights were recorded.";
  return example.texts[map.rows].length && example.texts[map.columns].length ? "" : "No tokens to show.";
}

/** The view that the state names, else the one of the payload, else that of generated tokens, else the first. */
const preferred = accepted =>
  [state.view, payload.view, generates(exampleOf(payload, state)) ? "generation" : ""]
    .map(name => accepted.find(view => view.name === name)).find(Boolean) ?? accepted[0];

const generates = example => Number.isInteger(example?.generation?.prompt);

function show() {
  const message = silence(),
    accepted = message || !payload.examples.length ? [] : VIEWS.filter(view => view.accepts(payload, state));
  byId("silence").textContent = message;
  byId("silence").hidden = !message;
  const view = preferred(accepted);
  showTabs(accepted, view);
  shown?.handle?.destroy?.();
  for (const part of ["view", "view-controls"]) byId(part).replaceChildren();
  byId("options").hidden = !view;
  shown = view ? { view, handle: null, example: exampleOf(payload, state) } : null;
  if (!view) return;
  showControls(view);
  byId("view").setAttribute("aria-label", view.label);
  shown.handle = view.render(byId("view"), payload, view.controls?.includes("special") ? state : withSpecial);
  byId("view-controls").append(...[shown.handle?.tools].filter(Boolean));
  byId("exports").hidden = !shown.handle?.figure;
  byId("options").hidden = !shown.handle?.figure && !byId("controls").children.length;
}

const phone = matchMedia("(max-width: 56rem)");

/** On a phone the options are closed at first; in a wide window they are always shown. */
const foldOptions = () => { byId("options").open = !phone.matches; };

function showTabs(accepted, view) {
  byId("tabs").hidden = byId("view-keys").hidden = accepted.length <= 1;
  byId("tabs").replaceChildren(...accepted.map(each => {
    const tab = button(each.label, () => state.set({ view: each.name }),
      { role: "tab", ariaSelected: String(each === view), tabIndex: each === view ? 0 : -1 });
    tab.dataset.view = each.name;
    tab.setAttribute("aria-controls", "view");
    return tab;
  }));
  const tab = byId("tabs").querySelector("[aria-selected=true]"); // on a phone, the tabs scroll
  if (tab) byId("tabs").scrollLeft = tab.offsetLeft - (byId("tabs").clientWidth - tab.offsetWidth) / 2;
}

function showControls(view) {
  const focused = byId("controls").contains(document.activeElement) ? document.activeElement.ariaLabel : null;
  byId("controls").replaceChildren(...(view.controls ?? []).map(name => CONTROLS[name]()).filter(Boolean));
  if (focused) byId("controls").querySelector(`[aria-label="${focused}"]`)?.focus();
}

function update(changed) {
  if (changed.has("theme")) showTheme();
  if (changed.has("example") && payload.examples.length) showExample();
  else if (changed.has("part") && payload.examples.length) showPredictions(byId("predictions"), payload, state);
  const accepted = payload.examples.length ? VIEWS.filter(view => view.accepts(payload, state)) : [];
  const wanted = preferred(accepted);
  if (!shown || changed.has("example") || wanted !== shown.view || !shown.handle?.update) return show();
  if (![...changed].every(key => ["pointed", "row", "column"].includes(key))) showControls(shown.view);
  shown.handle.update(changed);
}

function showTheme() {
  document.documentElement.dataset.theme = state.theme;
  byId("theme").textContent = isDark(state) ? "Light" : "Dark";
  byId("theme").ariaLabel = isDark(state) ? "Use light colors" : "Use dark colors";
}

/** File name of an export: the model, the view and the example. */
const fileName = extension =>
  `${`${payload.model || "attention"}-${shown.view.name}-${state.example + 1}`.replace(/[^\w.-]+/g, "-")}.${extension}`;

/** A figure with a line beneath it that names what it shows. */
function captioned(figure) {
  const { example, map, head } = current(payload, state), controls = shown.view.controls ?? [];
  const which = controls.includes("layer") ? [map.layer, map.heads > 1 ? headName(head) : ""] : [shown.view.label];
  const text = [payload.model, ...which, clipped(example.source, 80)].filter(Boolean)
    .map(part => visible(part, LONGEST_TEXT)).join(" · ");
  const caption = { type: "text", x: 8, y: figure.height + 8, text, size: 11, anchor: "start",
    fill: themeColors(payload, state).ink };
  return { width: Math.max(figure.width, 16 + 6.5 * text.length), height: figure.height + 22,
    items: [...figure.items, caption] };
}

function listen() {
  const choose = example => state.set({ example, part: "", row: null, column: null, pointed: null });
  listbox(byId("examples"), { chosen: choose });
  byId("examples").addEventListener("focusin", event => choose(Number(event.target.dataset.index)));
  byId("filter").addEventListener("input", event => {
    const wanted = event.target.value.toLowerCase();
    for (const child of byId("examples").children) child.hidden = !child.textContent.toLowerCase().includes(wanted);
  });
  byId("theme").addEventListener("click", () => state.set({ theme: isDark(state) ? "light" : "dark" }));
  byId("link").addEventListener("click", () => copy(location.href, "The address of this view is copied."));
  phone.addEventListener("change", foldOptions);
  foldOptions();
  byId("svg").addEventListener("click", () => {
    const text = toSvg(captioned(shown.handle.figure()), { title: payload.title, ...themeColors(payload, state) });
    download(new Blob([text], { type: "image/svg+xml" }), fileName("svg"));
  });
  byId("png").addEventListener("click", () =>
    toCanvas(captioned(shown.handle.figure()),
      themeColors(payload, state)).toBlob(blob => download(blob, fileName("png"))));
  byId("tabs").addEventListener("keydown", event => {
    const tabs = [...byId("tabs").children], step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length].click();
    byId("tabs").querySelector("[aria-selected=true]").focus();
  });
  document.addEventListener("keydown", shortcut);
  onSystemTheme(() => { showTheme(); if (shown) show(); });
}

/** Keys of the whole page: [ and ] change the layer, , and . the head, v the view, Escape unpins. */
function shortcut(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  const { example, map, head } = current(payload, state);
  if (event.key === "Escape") return state.set({ row: null, column: null, pointed: null });
  if (!map) return;
  const step = { "[": -1, "]": 1, ",": -1, ".": 1 }[event.key];
  if (event.key === "v") {
    const tabs = [...byId("tabs").children], at = tabs.findIndex(tab => tab.ariaSelected === "true");
    tabs[(at + 1) % tabs.length]?.click();
  } else if (step && "[]".includes(event.key)) {
    const layers = layersOf(example), layer = layers[layers.indexOf(map) + step]?.layer;
    if (layer !== undefined) state.set({ layer });
  } else if (step) {
    const at = (head === "average" ? 0 : head + 1) + step;
    if (at >= 0 && at <= map.heads) state.set({ head: at === 0 ? "average" : at - 1 });
  }
}

/** Show another payload instead of this one, in served mode. */
function replacePayload({ examples, notes, title, model, command, view }) {
  const first = !payload.examples.length;
  Object.assign(payload, { examples, notes, title, model, command, view });
  if (first) checkAddress();
  showAll();
}

function showAll() {
  showTheme();
  showHeader();
  showExamples();
  if (payload.examples.length) showExample();
  else showNoExample();
  show();
}

/** An embedded page links to the same view without embed=1. */
function showFullLink() {
  byId("full").hidden = false;
  byId("full").href = permalink({ ...state, embed: "" });
}

/** Accept the names of tabs as views; name the parts of the address that are ignored, and remove them from it. */
function checkAddress() {
  const ignored = ignoredKeys(location.hash, payload, state, VIEWS, payload.server ? SERVER_KEYS : {});
  state.set({ view: viewName(state.view, VIEWS) });
  byId("status").textContent = ignored.length
    ? `Ignored in the address: ${ignored.map(([key, value]) => visible(`${key}=${value}`)).join(", ")}.` : "";
  if (!ignored.length) return;
  state.reset(ignored.map(([key]) => key));
  history.replaceState(null, "", permalink(state));
}

listen();
checkAddress();
state.listen(update);
addEventListener("hashchange", checkAddress);
if ("embed" in state) {
  document.documentElement.classList.add("embedded");
  showFullLink();
  state.listen(showFullLink);
}
showAll();
if (payload.server) serverForm(byId("server"), payload, state, replacePayload);
window.qkvExplorer = { payload, state, shown: () => shown };
performance.mark("qkv-shown");
