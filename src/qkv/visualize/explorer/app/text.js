// Tokens and texts as a person reads them: invisible characters marked, long ones truncated.

// Spaces, controls and formats (including bidirectional controls), except single spaces between words, and joiners,
// which are part of the spelling.
const INVISIBLE = /((?!(?<=\S) (?=\S))(?![\u200c\u200d])[\p{Z}\p{Cc}\p{Cf}])/u;
const MARKS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
// The layout of very long tokens takes minutes.
export const LONGEST_TOKEN = 80;
export const LONGEST_TITLE = 500;
export const LONGEST_TEXT = 2000;

const codeOf = character => character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
const markOf = character => MARKS[character] ?? `⟨${codeOf(character)}⟩`;

/** Truncate a text with an ellipsis, without splitting a surrogate pair. */
export const clipped = (text, longest = LONGEST_TEXT) =>
  text.length > longest ? text.slice(0, longest).replace(/[\ud800-\udbff]$/, "") + "…" : text;

// An empty token is a space that the tokenizer strips from the beginning of a text.
const pieces = (token, longest) => clipped(token, longest).split(INVISIBLE).filter(Boolean);

/** A token with marks instead of invisible characters. */
export const visible = (token, longest = LONGEST_TOKEN) =>
  pieces(token, longest).map(piece => INVISIBLE.test(piece) ? markOf(piece) : piece).join("") || MARKS[" "];

export const quoted = token => `“${visible(token)}”`;

/** Nodes of a token with marked spaces; copying them gives the original text (unless truncated). */
export function spelled(token) {
  if (!token) return [marked("", MARKS[" "])];
  return pieces(token, LONGEST_TOKEN).map(piece => {
    if (!INVISIBLE.test(piece)) return document.createTextNode(piece);
    return marked(piece, markOf(piece));
  });
}

function marked(text, mark) {
  const span = document.createElement("span");
  Object.assign(span, { textContent: text, className: "mark" });
  span.dataset.mark = mark;
  return span;
}

/** Whether most tokens are single characters. */
export const areCharacters = tokens => tokens.filter(token => [...token].length <= 2).length > tokens.length * 2 / 3;

/** A weight with four decimals, or an upper bound of one that is not stored. */
export const number = ({ value, stored }) => stored ? value.toFixed(4) : `≤ ${value.toFixed(4)}`;

/** Decimals of a number under a token: two, or as many as give two digits of the end of the scale. */
const decimalsOf = peak => Math.max(2, 1 + Math.ceil(-Math.log10(peak || 1)));
const MOST_DECIMALS = 4; // before scientific notation

/** A weight or score as it is written under a token: ".87", "−.12"; on a scale up to 0.01, ".0087". */
export function brief(value, peak) {
  const decimals = decimalsOf(peak);
  if (decimals > MOST_DECIMALS) return value.toExponential(0).replaceAll("-", "−");
  return value.toFixed(decimals).replace(/^(-?)0/, "$1").replace("-", "−");
}

/** The smallest number that is not written as 0. */
export const leastBrief = peak => 0.5 * 10 ** -decimalsOf(peak);
