// Served mode: an input box whose answers come from the server, with ablated heads and masked tokens.

import { any, isInteger } from "./address.js";
import { scoreText } from "./candidates.js";
import { current } from "./context.js";
import { button, element } from "./dom.js";
import { clipped, quoted, visible } from "./text.js";

const WAIT = 400; // milliseconds after the last key

/** Rules of the keys of the address that a served page has. */
export const SERVER_KEYS = { input: any, kept: any, ablate: any,
  mask: value => value.split(" ").every(isInteger),
  model: (value, payload) => payload.server.models.includes(value) };

/** The ablated heads of the state, "layer:head" separated by spaces, as [{ layer, head }]. */
const ablated = state => (state.ablate ?? "").split(" ").filter(Boolean).map(text => {
  const at = text.lastIndexOf(":");
  return { layer: text.slice(0, at), head: Number(text.slice(at + 1)) };
});

/** The masked tokens of the state, as indices. */
const masked = state => (state.mask ?? "").split(" ").filter(Boolean).map(Number);

/** Add a word to a list of words, or remove it. */
const toggled = (words, word) => {
  const all = (words ?? "").split(" ").filter(Boolean);
  return (all.includes(word) ? all.filter(each => each !== word) : [...all, word]).join(" ");
};

/** Fill the form; `replace(payload)` shows the answer of the server. */
export function serverForm(form, payload, state, replace) {
  const { server: { endpoint, docs, models, inputs }, title: heading } = payload;
  const model = element("select", "", { ariaLabel: "Model", id: "server-model", hidden: models.length < 2 });
  model.append(...models.map(name => element("option", name, { value: name })));
  if (models.includes(state.model)) model.value = state.model;
  const input = element("textarea", "",
    { rows: 2, id: "server-input", ariaLabel: "Input", placeholder: "Type an input", dir: "auto" });
  input.value = state.input ?? inputs[model.value] ?? "";
  const key = element("input", "",
    { type: "password", id: "server-key", ariaLabel: "API key", placeholder: "API key",
      autocomplete: "current-password" });
  const status = element("p", "", { className: "note", id: "server-status", role: "status" }),
    changes = element("div", "", { id: "server-changes" });
  const intro = element("p", "Type an input to see the output of the model and its attention weights. ",
    { id: "server-intro" }, element("a", "API documentation", { href: docs }));
  form.replaceChildren(intro, model, input, button("Show attention", () => send(), { id: "server-send" }), status, changes);
  form.hidden = false;
  let timer = 0, last = 0, plain = null; // the answer without changes: { model, input, example }
  let removed = "", chosen = model.value; // what to say about a removed mask; the model
  let answered = null, kept = null; // the last request with its example, and the one kept for a comparison
  const ask = body => post(endpoint, body, key.value, () => input.after(key));

  async function send() {
    clearTimeout(timer);
    const text = input.value, number = ++last;
    if (!text.trim()) return clear();
    const options = { ablate: ablated(state), mask: masked(state), layer: state.layer || null };
    const body = { model: model.value, input: text, options };
    status.textContent = "…";
    try {
      if (state.kept && !kept) await restore();
      const answer = await ask(body);
      if (number !== last) return; // a later request is under way
      status.textContent = removed;
      removed = "";
      unpin(payload.examples[0], answer.examples[0]);
      const [example] = answer.examples, changed = options.ablate.length + options.mask.length > 0;
      if (!changed) plain = example && { model: body.model, input: text, example };
      answered = { body, answer };
      state.set({ input: text, model: models.length > 1 ? model.value : "", pointed: null });
      showAnswer();
      showChanges();
      const before = changed ? await original(body) : null;
      if (number === last) compare(before, example);
    } catch (error) {
      if (number === last) status.textContent = `No answer: ${error.message}`;
    }
  }

  /** The answer to a request without its changes. */
  async function original(body) {
    const isKnown = plain?.model === body.model && plain.input === body.input;
    if (isKnown) return plain.example;
    const { examples: [example] } = await ask({ ...body, options: { ...body.options, ablate: [], mask: [] } });
    plain = example && { model: body.model, input: body.input, example };
    return example;
  }

  /** Show no answer, because there is no input. */
  function clear() {
    answered = null;
    removed = status.textContent = "";
    state.set({ input: "", row: null, column: null, pointed: null });
    replace({ examples: [], notes: [], title: heading, model: "", command: "", view: "" });
    showChanges();
  }

  /** Unpin the tokens of an answer that the next one does not have at the same index. */
  function unpin(before, after) {
    const tokens = (example, side) => JSON.stringify(example?.texts[example.maps[0]?.[side]] ?? []);
    const differ = side => before && tokens(before, side) !== tokens(after, side);
    state.set({ ...differ("rows") ? { row: null } : {}, ...differ("columns") ? { column: null } : {} });
  }

  /** Remove the mask, whose indices belong to the tokens of one input, and change other parts of the state. */
  function removeMask(reason, others = {}) {
    if (masked(state).length) removed = `The mask was removed, because ${reason}.`;
    state.set({ mask: "", row: null, column: null, pointed: null, ...others });
  }

  /** Show the last answer, next to the one that is kept. */
  function showAnswer() {
    if (!answered) return;
    const { answer } = answered;
    replace({ ...answer, examples: [...answer.examples, ...kept ? [kept.example] : []] });
  }

  /** Keep the last answer, to compare it with others; the address holds its request. */
  function keep() {
    kept = answered && { example: answered.answer.examples[0] };
    state.set({ kept: JSON.stringify(answered.body), view: "compare", pointed: null });
    showAnswer();
  }

  /** Ask again for the answer that the address says is kept. */
  async function restore() {
    try {
      const { examples: [example] } = await ask(JSON.parse(state.kept));
      kept = { example };
    } catch {
      state.set({ kept: "" }); // it is not a request, or the server does not answer it any more
    }
  }

  function dropKept() {
    kept = null;
    state.set({ kept: "", other: "", view: "", pointed: null });
    showAnswer();
  }

  /** Say what the changes did to the output. */
  function compare(before, example) {
    if (!before) return;
    const outcome = each => each.predictions.length === 1 ? [element("bdi", scoreText(each))]
      : [element("bdi", clipped(each.text || "no output")),
        ...[scoreText(each)].filter(Boolean).map(text => ` (${text})`)];
    status.replaceChildren(status.textContent, status.textContent && " ", "Original output: ", ...outcome(before),
      ". After intervention: ", ...outcome(example));
  }

  function showChanges() {
    const { example, map, head } = current(payload, state),
      drop = (key, word) => state.set({ [key]: toggled(state[key], word) });
    const chips = [
      ...ablated(state).map(each =>
        button(`head ${each.head} of ${visible(each.layer)} off ×`,
          () => drop("ablate", `${each.layer}:${each.head}`))),
      ...masked(state).map(each =>
        button(`token ${each + 1} ${quoted(example?.texts[example.maps[0]?.columns]?.[each] ?? "")} masked ×`,
          () => drop("mask", String(each)))),
    ];
    const isInput = map && map.columns === example.maps[0].columns && state.column !== null;
    changes.replaceChildren(
      button("Turn this head off", () => drop("ablate", `${map.layer}:${head}`),
        { id: "ablate", disabled: !map || head === "average", title: head === "average" ? "Select a head first" : "" }),
      button("Mask the pinned key", () => drop("mask", String(state.column)),
        { id: "mask", disabled: !isInput, title: isInput ? "" : "Click on a token of the input first" }),
      kept ? button("Stop comparing", dropKept, { id: "keep" })
        : button("Keep for comparison", keep, { id: "keep", disabled: !answered }),
      ...chips);
  }

  form.addEventListener("submit", event => { event.preventDefault(); send(); });
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (input.value !== state.input) removeMask("the input changed"); send(); }, WAIT);
  });
  model.addEventListener("change", () => {
    if (!input.value.trim() || input.value === inputs[chosen]) input.value = inputs[model.value] ?? input.value;
    chosen = model.value;
    removeMask("the model changed", { ablate: "", layer: "", head: "average", heads: "" });
    send();
  });
  state.listen(changed => {
    // Where the input or the model changes, too, send() is called at once, and this request is left out.
    if (changed.has("ablate") || changed.has("mask")) {
      clearTimeout(timer);
      timer = setTimeout(send);
    }
    if (!changed.has("pointed") || changed.size > 1) showChanges();
  });
  showChanges();
  if (input.value) send();
}

async function post(endpoint, body, key, askForKey) {
  const headers = { "Content-Type": "application/json", ...key && { Authorization: `Bearer ${key}` } };
  const response = await fetch(endpoint, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) askForKey();
  if (response.ok) return answer;
  throw new Error(answer.error?.message
    ?? (typeof answer.detail === "string" ? answer.detail : `status ${response.status}`));
}
