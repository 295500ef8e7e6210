// The address: the rules of its keys, and a notice of what is ignored.
//
// A rule is a function (value, payload) that returns whether a key takes a value. Each view has the rules of its own
// keys; those that depend on the examples are not checked before there are any.

export const oneOf = (...values) => value => values.includes(value);
export const isInteger = value => /^\d+$/.test(value);
export const any = () => true;

const below = (value, limit) => isInteger(value) && Number(value) < limit;
const known = rule => (value, payload) => !payload.examples.length || rule(value, payload.examples);

/** The largest value of the examples. */
const most = (examples, valueOf) => examples.reduce((largest, each) => Math.max(largest, valueOf(each)), 0);

export const isExample = known((value, examples) => below(value, examples.length));
export const isLayer = known((value, examples) =>
  examples.some(example => example.maps.some(map => map.layer === value)));
const isHeadIndex = known((value, examples) =>
  below(value, most(examples.flatMap(example => example.maps), map => map.heads)));
export const isHead = (value, payload) => value === "average" || isHeadIndex(value, payload);
export const areHeads = (value, payload) => value.split(" ").every(head => isHeadIndex(head, payload));
const isToken = known((value, examples) => {
  const texts = examples.every(each => !each.document && !each.memory && !each.audio && !each.episode
    && !each.explanation); // else rows and columns are other things than tokens
  return below(value, texts ? most(examples.flatMap(example => example.texts), tokens => tokens.length) : Infinity);
});

/** The rules of the keys that all views share. */
const KEYS = { example: isExample, layer: isLayer, head: isHead, row: isToken, column: isToken,
  special: oneOf("shown", "hidden", "renormalized"), scale: oneOf("shared", "own"), curve: oneOf("linear", "root"),
  theme: oneOf("light", "dark", "auto"), embed: any, part: isInteger };

/** The name of a view, given its name or another name of it, such as that of its tab. */
export const viewName = (name, views) => views.find(view => view.aliases?.includes(name))?.name ?? name;

/** The keys of an address with values that are ignored, as [key, value] pairs; `keys` are further rules. */
export function ignoredKeys(hash, payload, state, views, keys = {}) {
  const isView = known((value, examples) => views.some(view => view.name === viewName(value, views)
    && examples.some((_, example) => view.accepts(payload, { ...state, example }))));
  const rules = new Map(Object.entries({ ...KEYS, view: isView, ...keys }));
  for (const view of views) for (const [key, rule] of Object.entries(view.keys ?? {})) rules.set(key, rule);
  return [...new URLSearchParams(hash.replace(/^#/, ""))].filter(([key, value]) =>
    value !== "" && !rules.get(key)?.(value, payload));
}
