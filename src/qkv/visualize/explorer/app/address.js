// The address: its keys with the values that they take, and a notice of what is ignored.

const ALIASES = { heads: "model", "next-token": "generation", "beam-search": "beams", "side-by-side": "compare",
  image: "picture" };

/** The name of a view, given its name or that of its tab. */
export const viewName = name => ALIASES[name] ?? name;

const oneOf = (...values) => value => values.includes(value);
const below = limit => value => /^\d+$/.test(value) && Number(value) < limit;
const any = () => true;

/** The largest value of the examples. */
const most = (examples, valueOf) => examples.reduce((largest, each) => Math.max(largest, valueOf(each)), 0);

/** What each key may be, as predicates; values that depend on the examples are not checked before there are any. */
function rules(payload, state, views) {
  const { examples, server } = payload, known = check => examples.length ? check : any;
  const maps = examples.flatMap(example => example.maps);
  const layer = known(value => maps.some(map => map.layer === value));
  const heads = most(maps, map => map.heads), head = known(value => value === "average" || below(heads)(value));
  const texts = examples.every(each => !each.document && !each.memory && !each.audio && !each.episode
    && !each.explanation); // else rows and columns are other things than tokens
  const token = known(below(texts ? most(examples.flatMap(example => example.texts), tokens => tokens.length)
    : Infinity));
  const accepted = value => views.some(view => view.name === viewName(value)
    && examples.some((_, example) => view.accepts(payload, { ...state, example })));
  return { view: known(accepted), example: known(below(examples.length)), layer, layer2: layer, head, head2: head,
    heads: known(value => value.split(" ").every(below(heads))), row: token, column: token,
    special: oneOf("shown", "hidden", "renormalized"), scale: oneOf("shared", "own"), curve: oneOf("linear", "root"),
    theme: oneOf("light", "dark", "auto"), embed: any, sort: oneOf("entropy", "distance", "diagonality"),
    order: oneOf("descending"), candidates: oneOf("all"), side: oneOf("right"), rows: oneOf("words"),
    locations: oneOf("all"), part: below(Infinity), step: below(Infinity), stage: below(Infinity),
    hypothesis: below(Infinity), other: known(below(examples.length)),
    ...server ? { input: any, kept: any, ablate: any, mask: value => value.split(" ").every(below(Infinity)),
      model: value => server.models.includes(value) } : {} };
}

/** The keys of an address with values that are ignored, as [key, value] pairs. */
export function ignoredKeys(hash, payload, state, views) {
  const all = rules(payload, state, views);
  return [...new URLSearchParams(hash.replace(/^#/, ""))].filter(([key, value]) =>
    value !== "" && !(Object.hasOwn(all, key) && all[key](value)));
}
