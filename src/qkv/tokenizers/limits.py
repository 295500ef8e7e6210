"""Limits on an untrusted tokenizer.json, checked before it processes any text.

Every step of a tokenizer can make a text longer, and growth multiplies: five replacements of one character by 64 turn
a word into 10^9 characters. This module computes the worst-case growth of all steps, in bytes of UTF-8:

    bytes after a step <= factor * bytes before it + constant

Only known step types are accepted, because the growth of others cannot be computed, and only regular expressions that
match in linear time, or that released tokenizers use.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_STEPS = 64  # of each of normalizer, pre-tokenizer, post-processor and decoder
MAX_GROWTH = 2**11  # of normalizer and pre-tokenizer together; ALBERT's is 1,089
MAX_DECODER_GROWTH = 2**5
FREE_GROWTH = 20  # up to this growth, texts of any length are accepted; BERT's is 7.5, GPT-2's 4, Llama's 12
MAX_GROWN_BYTES = 2**22  # of a text after a larger growth, and of all added tokens after normalization
MAX_SPECIAL_TOKENS = 2**6  # added to a text by a post-processor
MAX_AFFIX = 2**6  # characters of "##", "</w>" and the like
MAX_WORD_CHARS = 1000  # of max_input_chars_per_word: WordPiece takes cubic time in it; released models use 100
MAX_TOKEN_CHARS = 2**10
MAX_TOKENS = 2**20  # LaBSE, the largest released BERT vocabulary, has 501,153
MAX_UNIGRAM_BYTES = 2**22  # of all tokens: the library's trie takes 330 bytes for each; XLM-R has 2.3 million
MAX_PATTERN_CHARS = 2**10

TRIM = r"^ +|(?<! ) +$"
SPACES = r"\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d"
SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
RELEASED_PATTERNS = {  # linear in practice, because whitespace is the last alternative
    rf"{GPT2}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}",  # GPT-2
    rf"{GPT2}| ?\p{{L}}+| ?\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}",
    *(
        rf"{SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"
        for digits in ("", "{1,3}")  # Qwen 2; GPT-4 and Llama 3
    ),
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIXES}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIXES}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{SPACES}",  # GPT-4o
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{SPACES}",  # Mistral's Tekken
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    TRIM,
}
ESCAPE = r"\\p\{\^?\w{1,32}\}|\\[^\w]|\\[dDsSwWnrtf]"
ATOM = rf"(?:{ESCAPE}|\[(?:{ESCAPE}|[^\\\[\]&])+\]|[^\\\[\](){{}}|^$?*+])"
FIXED = rf"{ATOM}(?:\{{\d{{1,2}}\}})?"
BOUNDED = rf"{ATOM}(?:\?|\{{\d{{1,2}},\d{{1,2}}\}})"
WORD_CHOICE = r"\((?:\?:|\?i:)?[\w' ]+(?:\|[\w' ]+)*\)"
RUN = rf"{ATOM}(?:\+|\*|\{{\d{{1,2}},\}})"
# At most one choice point for backtracking, then a repetition, after which nothing can fail.
LINEAR_BRANCH = (
    rf"(?:{FIXED})*(?:(?:{BOUNDED}|{WORD_CHOICE})(?:{FIXED})*)?(?:{RUN}(?:{ATOM}[*?])*(?:{WORD_CHOICE}\?)?)?"
)
LINEAR_PATTERN = re.compile(rf"{LINEAR_BRANCH}(?:\|{LINEAR_BRANCH})*", re.ASCII)
SHORTEST_MATCH = {" {2,}": 2, r"\s+": 1, TRIM: 1}  # bytes, of the expressions that released normalizers replace

Step = Mapping[str, Any]  # of a normalizer, pre-tokenizer, post-processor or decoder
SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")  # the keys of their steps


@dataclass(frozen=True)
class Growth:
    """Upper bound on the output of a step in bytes: factor * bytes + constant."""

    factor: float = 1.0
    constant: float = 0.0

    def then(self, step: "Growth") -> "Growth":
        return Growth(self.factor * step.factor, self.constant * step.factor + step.constant)

    @property
    def total(self) -> float:
        """Growth of a text split into pieces of one byte, where the constant applies to each."""
        return self.factor + self.constant


def check_tokenizer_json(data: Any, max_growth: float = MAX_GROWTH) -> None:
    """Raise ValueError if a tokenizer.json exceeds a limit."""
    if not isinstance(data, dict):
        raise ValueError("it must be a JSON object")
    growth = encoding_growth(data.get("normalizer"), data.get("pre_tokenizer"))
    if growth > max_growth:
        raise ValueError(f"its normalizer and pre-tokenizer can make a text {growth:,.0f} times as long")
    _check_post_processor(data.get("post_processor"))
    decoding = _growth(data.get("decoder"), "decoder", DECODERS).total
    if decoding > MAX_DECODER_GROWTH:
        raise ValueError(f"its decoder can make a text {decoding:,.0f} times as long")
    _check_model(data.get("model"))
    _check_added_tokens(data.get("added_tokens"), growth)


def encoding_growth(normalizer: Any, pre_tokenizer: Any) -> float:
    """Return the worst-case growth per byte of a normalizer and pre-tokenizer, given as JSON."""
    growth = _growth(normalizer, "normalizer", NORMALIZERS)
    return growth.then(_growth(pre_tokenizer, "pre-tokenizer", PRE_TOKENIZERS)).total


def max_text_bytes(growth: float) -> int | None:
    """Return the maximum text length for a tokenizer of this growth; None if unlimited."""
    return None if growth <= FREE_GROWTH else int(MAX_GROWN_BYTES / growth)


def steps(value: Any) -> list[dict[str, Any]]:
    """Return the steps of a normalizer, pre-tokenizer, post-processor or decoder, with nested sequences flattened."""
    flat = list(_flatten(value))
    if len(flat) > MAX_STEPS:
        raise ValueError(f"it has {len(flat)} steps, at most {MAX_STEPS} are accepted")
    return flat


def _flatten(value: Any) -> Iterator[dict[str, Any]]:
    if value is None:
        return
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ValueError("it has a step without a type")
    if value["type"] != "Sequence":
        yield value
        return
    parts = next((value[key] for key in SEQUENCES if key in value), None)
    if not isinstance(parts, list):
        raise ValueError("it has a sequence without steps")
    for part in parts:
        yield from _flatten(part)


def _growth(value: Any, what: str, table: "Growths") -> Growth:
    """Return the growth of all steps of a normalizer, pre-tokenizer or decoder."""
    growth = Growth()
    for step in steps(value):
        kind = step["type"]
        if kind not in table:
            raise ValueError(f"it has a {what} of an unknown type {kind[:100]!r}")
        entry = table[kind]
        growth = growth.then(entry(step) if callable(entry) else Growth(entry))
    return growth


def _replacement_growth(step: Step) -> Growth:
    content = _size(step, "content")
    shortest = _shortest_match(step.get("pattern"))
    if shortest:
        return Growth(max(1.0, content / shortest))
    return Growth(1.0 + content, content)  # inserted between all characters


def _shortest_match(pattern: Any) -> int:
    """Return the minimum match length of a pattern in bytes; raise for expressions that may take superlinear time."""
    match pattern:
        case {"String": str(literal)} if len(pattern) == 1:
            return len(literal.encode(errors="replace"))
        case {"Regex": str(expression)} if len(pattern) == 1:
            short = len(expression) <= MAX_PATTERN_CHARS
            if expression not in RELEASED_PATTERNS and not (short and LINEAR_PATTERN.fullmatch(expression)):
                raise ValueError(f"it has a regular expression that may take too long: {expression[:100]!r}")
            return SHORTEST_MATCH.get(expression, 0)
    raise ValueError("it has a step without a pattern")


def _precompiled_growth(step: Step) -> Growth:
    try:
        return Growth(check_charsmap(base64.b64decode(step["precompiled_charsmap"], validate=True)))
    except (KeyError, TypeError, binascii.Error):
        raise ValueError("its precompiled_charsmap is not in base64") from None


def check_charsmap(data: bytes) -> float:
    """Check a SentencePiece charsmap (size, Darts trie, null-terminated replacements) and return its growth.

    A single byte of text can only be replaced by the value of a key of one ASCII character.
    """
    size = int.from_bytes(data[:4], "little")
    if len(data) < 8 or size % 4 or not 4 <= size <= len(data) - 4:
        raise ValueError("its precompiled_charsmap is truncated")
    units = memoryview(data[4 : 4 + size]).cast("I")
    replacements = data[4 + size :]
    longest = max(map(len, replacements.split(b"\0")))
    ascii_values = (_darts_value(units, character) for character in range(1, 128))
    lengths = (len(replacements[value:].split(b"\0", 1)[0]) for value in ascii_values if value is not None)
    growth = max(1.0, longest / 2, *lengths)
    if growth > MAX_AFFIX:
        raise ValueError(f"its precompiled_charsmap can make a text {growth:,.0f} times as long")
    return growth


def _darts_value(units: "memoryview[int]", character: int) -> int | None:
    """Return the value of a one-byte key in a double-array trie, or None."""
    node = _darts_offset(units[0]) ^ character
    if node >= len(units) or units[node] & 0x800000FF != character or not units[node] >> 8 & 1:
        return None
    leaf = node ^ _darts_offset(units[node])
    return units[leaf] & 0x7FFFFFFF if leaf < len(units) else None


def _darts_offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _split_growth(step: Step) -> Growth:
    _shortest_match(step.get("pattern"))
    return Growth()


def _word_decoder_growth(step: Step) -> Growth:
    """Return the growth of a decoder that adds a space to each word, instead of a separator if there is one."""
    sizes = {key: _size(step, key) for key in ("prefix", "suffix", "pad_token", "word_delimiter_token")}
    separated = step["type"] == "WordPiece" or sizes["suffix"] or sizes["word_delimiter_token"]
    return Growth(1.0 if separated else 2.0, 1.0)


def _check_post_processor(value: Any) -> None:
    """Raise unless each text appears once in the output, with a bounded number of special tokens."""
    added = 0
    for step in steps(value):
        match step["type"]:
            case "ByteLevel":
                continue
            case "BertProcessing" | "RobertaProcessing":
                added += 4
            case "TemplateProcessing":
                added += max(_special_tokens(step, side) for side in ("single", "pair"))
            case kind:
                raise ValueError(f"it has a post-processor of an unknown type {kind[:100]!r}")
    if added > MAX_SPECIAL_TOKENS:
        raise ValueError(f"it adds {added} special tokens to each text, at most {MAX_SPECIAL_TOKENS} are accepted")


def _special_tokens(step: Step, side: str) -> int:
    """Return the number of special tokens in a template, which may contain each text at most once."""
    template, special_tokens = step.get(side), step.get("special_tokens")
    if not isinstance(template, list) or not isinstance(special_tokens, dict):
        raise ValueError("it has a template without a list of tokens")
    added, texts = 0, []
    for piece in template:
        match piece:
            case {"Sequence": {"id": str(text)}} if len(piece) == 1:
                texts.append(text)
            case {"SpecialToken": {"id": str(name)}} if len(piece) == 1:
                token = special_tokens.get(name)
                ids = token.get("ids") if isinstance(token, dict) else None
                added += len(ids) if isinstance(ids, list) else 1
            case _:
                raise ValueError("it has a template with something other than texts and special tokens")
    if len(set(texts)) < len(texts):
        raise ValueError("its template repeats a text")
    return added


def _check_model(model: Any) -> None:
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        _size(model, key)
    chars = model.get("max_input_chars_per_word")
    if isinstance(chars, int) and chars > MAX_WORD_CHARS:
        raise ValueError(f"max_input_chars_per_word is {chars:,}, at most {MAX_WORD_CHARS:,} is accepted")
    for key in ("vocab", "merges"):
        entries = model.get(key)
        if isinstance(entries, dict | list) and len(entries) > MAX_TOKENS:
            raise ValueError(f"it has {len(entries):,} entries in {key}, at most {MAX_TOKENS:,} are accepted")
    if isinstance(model.get("vocab"), list):
        check_unigram(str(entry[0]) for entry in model["vocab"])


def check_unigram(tokens: Iterable[str]) -> None:
    """Raise if the trie of a Unigram model would take too much memory."""
    total = sum(len(token.encode(errors="replace")) for token in tokens)
    if total > MAX_UNIGRAM_BYTES:
        raise ValueError(f"its tokens have {total:,} bytes, at most {MAX_UNIGRAM_BYTES:,} are accepted")


def _check_added_tokens(tokens: Any, growth: float) -> None:
    """Raise if normalization of the added tokens, which happens on loading, would take too much memory."""
    contents = [token.get("content") for token in tokens or () if isinstance(token, dict)]
    total = sum(len(content.encode(errors="replace")) for content in contents if isinstance(content, str))
    if total * growth > MAX_GROWN_BYTES:
        raise ValueError(f"it adds {len(contents):,} tokens of {total:,} bytes, which is too much")


def _size(step: Step, key: str) -> int:
    """Return the length in bytes of a string parameter of a step."""
    value = step.get(key)
    if value is None:
        return 0
    if not isinstance(value, str):
        raise ValueError(f"{key} must be text")
    if len(value) > MAX_AFFIX:
        raise ValueError(f"{key} has {len(value):,} characters, at most {MAX_AFFIX} are accepted")
    return len(value.encode(errors="replace"))


# The growth in bytes of each known step. Unicode's own worst cases are U+1D160 (NFC), U+0390 (NFD), U+FDFA (NFKC and
# NFKD, 3 to 33 bytes) and U+0130 or U+023A (lower case, 2 to 3 bytes).
Growths = dict[str, float | Callable[[Step], Growth]]
NORMALIZERS: Growths = {
    "NFC": 3.0,
    "NFD": 3.0,
    "NFKC": 11.0,
    "NFKD": 11.0,
    "Lowercase": 1.5,
    **dict.fromkeys(("Strip", "StripAccents", "Nmt"), 1.0),
    "BertNormalizer": 5 / 3 * 3.0 * 1.5,  # a space on each side of a Chinese character, NFD for accents, lower case
    "ByteLevel": 2.0,
    "Prepend": lambda step: Growth(1.0, _size(step, "prepend")),
    "Replace": _replacement_growth,
    "Precompiled": _precompiled_growth,
}
PRE_TOKENIZERS: Growths = {
    **dict.fromkeys(("BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Punctuation"), 1.0),
    **dict.fromkeys(("UnicodeScripts", "Whitespace", "WhitespaceSplit"), 1.0),
    "Split": _split_growth,
    "ByteLevel": lambda step: Growth(2.0 if step.get("add_prefix_space") is False else 4.0),
    "Metaspace": lambda step: Growth(1.0 + _size(step, "replacement")),
}
DECODERS: Growths = {
    **dict.fromkeys(("ByteFallback", "Fuse", "Strip", "Metaspace"), 1.0),
    "ByteLevel": 3.0,  # a byte that is not UTF-8 becomes U+FFFD
    **dict.fromkeys(("WordPiece", "BPEDecoder", "CTC"), _word_decoder_growth),
    "Replace": _replacement_growth,
}
