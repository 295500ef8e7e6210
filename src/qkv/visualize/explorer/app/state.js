// What is shown, kept in the address (location.hash) so that a link reproduces it.

const DEFAULTS = {
  view: "", // name of the view; "" for the first one that accepts the example
  example: 0,
  layer: "", // name of the layer; "" for the first
  head: "average", // "average" or the number of a head
  heads: "", // several heads that Lines overlays, separated by spaces
  row: null, // pinned query and key, as indices of tokens
  column: null,
  special: "shown", // special tokens: "shown", "hidden" or "renormalized" (hidden, rows sum to 1)
  scale: "shared", // color scale: "shared" by all layers and heads of the example, or each head's "own"
  curve: "", // "linear" or "root"; "" chooses by the number of keys
  theme: "auto", // "light", "dark" or "auto"
};

/** Read the state of an address; keys that are not known belong to views and are kept as text. */
function parse(hash) {
  const values = {};
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (key === "head") values.head = /^\d+$/.test(value) ? Number(value) : "average";
    else if (key === "example" || key === "row" || key === "column") {
      if (/^\d+$/.test(value)) values[key] = Number(value);
    } else values[key] = value;
  }
  return values;
}

/**
 * The state of the application: `state.head`, ...; `state.set({ head: 3 })` changes it, writes the address and calls
 * the listeners with the changed keys; `state.reset(["head"])` sets keys to their defaults. `pointed` is
 * { row, column } under the pointer or focus, which is not in the address.
 */
export function createState() {
  const listeners = [];
  const state = { ...DEFAULTS, ...parse(location.hash), pointed: null };
  const hidden = (target, name, value) => Object.defineProperty(target, name, { value, enumerable: false });
  hidden(state, "listen", listener => listeners.push(listener));
  hidden(state, "set", values => {
    const changed = new Set(Object.keys(values).filter(key => state[key] !== values[key]));
    if (!changed.size) return;
    Object.assign(state, values);
    if ([...changed].some(key => key !== "pointed")) history.replaceState(null, "", permalink(state));
    for (const listener of listeners) listener(changed);
  });
  hidden(state, "reset", keys => state.set(Object.fromEntries(keys.map(key => [key, DEFAULTS[key] ?? ""]))));
  addEventListener("hashchange", () => {
    const before = Object.fromEntries(Object.keys(state).map(key => [key, ""])); // keys that the address has no longer
    state.set({ ...before, ...DEFAULTS, ...parse(location.hash), pointed: null });
  });
  return state;
}

/** The part of the address that reproduces the state; defaults are left out. */
export function permalink(state) {
  const entries = Object.entries(state).filter(([key, value]) =>
    key !== "pointed" && value !== (DEFAULTS[key] ?? null) && value !== "");
  return `#${new URLSearchParams(entries)}`;
}

/**
 * The tokens to describe: those under the pointer or focus, else the pinned ones, else the first query (of a language
 * model the last).
 */
export function selection(state, plane) {
  const { row, column } = state.pointed ?? state;
  const at = { row: plane.rows.includes(row) ? row : null, column: plane.columns.includes(column) ? column : null };
  return at.row === null && at.column === null ? { row: firstQuery(plane), column: null } : at;
}

/** The query that is selected at first: the first token of a language model attends to itself only. */
export const firstQuery = plane => plane.last ? plane.rows.at(-1) : plane.rows[0];

/** Pin the tokens, or unpin them if they are pinned. */
export function pin(state, row, column) {
  const same = state.row === row && state.column === column;
  state.set({ row: same ? null : row, column: same ? null : column });
}
