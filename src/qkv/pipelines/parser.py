"""Parsing as translation: sentences into constituency trees, sequences of brackets and tags (Vinyals et al. 2015)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from qkv.datasets.batching import EncodedPair, PairBatch, collate
from qkv.datasets.examples.tagged import Tagged
from qkv.datasets.examples.trees import MAX_DEPTH, MAX_SYMBOL, MAX_WORDS, Tree, escape_brackets
from qkv.errors import InputError
from qkv.generation import BracketGrammar, GenerationConfig, Hypothesis
from qkv.pipelines.inputs.tree_inputs import (
    DependencyTree,
    ParsedSentence,
    WordPair,
    parsed_encoding,
    with_trees,
    word_starts,
)
from qkv.pipelines.output import Answer, AttentionMap, AttentionMaps
from qkv.pipelines.pipeline import one_or_many
from qkv.pipelines.translator import Source, Translator
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.words import split_words

MAX_DECODED_DEPTH = 64  # of a decoded tree, at most MAX_DEPTH
assert MAX_DECODED_DEPTH <= MAX_DEPTH
Sentence = str | tuple[str, ...] | Tagged  # a text, or its words


@dataclass(frozen=True, kw_only=True, repr=False)
class Parse(Answer):
    """A sentence and its tree; the rows of its maps are the symbols of the linearized tree."""

    tree: Tree
    symbols: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain data, as `qkv parse --json` prints it."""
        fields = {
            "tree": self.text,
            "score": round(self.score, 6),
            "words": list(self.tree.words),
            "tags": list(self.tree.tags),
            "constituents": [list(constituent) for constituent in self.tree.constituents],
            "symbols": list(self.symbols),
        }
        if self.attention:
            fields["attention"] = [[round(float(weight), 5) for weight in row] for row in self.words().average]
        return fields

    def words(self) -> AttentionMap:
        """The first map between symbols and words."""
        if not self.attention:
            raise InputError("this answer has no attention: use a model with attention")
        return self.attention[0].by_words(" ".join(self.symbols), self.source)


class Parser(Translator):
    """A sequence-to-sequence parser with its tokenizer: `Parser("runs/gum-parse-gru-0")("The cat sleeps.").tree`.

    Texts are split by `split_words`; a tuple of words is used as it is. Every output is a tree over all words in their
    order: search is limited to the symbols that can continue one.
    """

    task_description: ClassVar = "parsing"
    required: ClassVar = "a parser (for qkv parse)"
    input_types: ClassVar = (str, tuple, Tagged)

    def setup(self) -> None:
        super().setup()
        if not can_parse(self.tokenizer):
            raise InputError(f"{self.name}: parsing requires a model trained with the task parse")
        vocab = self.tokenizer.target.vocab
        labels = _labels(vocab)
        self.grammar = BracketGrammar(
            [vocab[f"({label}"] for label in labels], [vocab[f"){label}"] for label in labels],
            terminals(self.tokenizer), self.special_tokens.end, self.model.config.target_vocab_size, MAX_DECODED_DEPTH,
        )  # fmt: skip

    @one_or_many
    def __call__(  # type: ignore[override]  # fewer options than a translator
        self,
        sentences: Sequence[Sentence],
        *,
        num_beams: int = 1,
        num_return_sequences: int = 1,
        length_penalty: float = 1.0,
        attention: bool = False,
        batch_size: int | None = None,
    ) -> list[Parse]:
        """Parse one sentence or several, by greedy search or beam search.

        Args:
            sentences: A sentence or several; a sentence may be a tuple of its words.
            num_beams: Number of beams; 1 is greedy search.
            num_return_sequences: Number of results for each input, at most `num_beams` unless they are sampled; with
                more than 1, the result for each input is a list, best first.
            length_penalty: Scores are log p / length ** length_penalty; greater values favor longer outputs.
            attention: Compute the attention of all parses of a batch at once, not of each parse on first access.
            batch_size: Number of sentences processed at a time; by default as many as fit in memory.

        Returns:
            One `Parse` for each sentence, with `tree` and `score`.
        """
        config = GenerationConfig(
            num_beams=num_beams, num_return_sequences=num_return_sequences, length_penalty=length_penalty
        )
        inputs = [
            Tagged(sentence, ("",) * len(sentence)) if isinstance(sentence, tuple) else sentence
            for sentence in sentences
        ]
        parses = dict(self.stream(inputs, config, attention=attention, batch_size=batch_size))
        results: list[Any] = [parses[index] for index in range(len(sentences))]
        return results if num_return_sequences > 1 else [best for (best,) in results]

    def default_length(self, source: Source) -> int:
        return 5 * len(source.words) + 10  # trees have 2.6 symbols per word on average, and at most 5

    def grammar_input(self, source: Source, limit: int) -> tuple[int, int]:
        return len(source.words), limit

    def fits(self, text: str | Tagged) -> bool:
        """Whether a sentence and its smallest trees are within the model's maximum length."""
        words = _words(text)
        tokens = self.tokenizer.source.encode(" ".join(words), add_special_tokens=True)
        return max(len(tokens), len(words) + 2) <= self.model.config.max_length

    def check(self, texts: Sequence[str | Tagged], first: int = 1, target: str | None = None) -> None:
        """Raise for the first sentence that cannot be parsed; blank texts pass. Texts are numbered from `first`."""
        self.encode({number: text for number, text in enumerate(texts, start=first) if "".join(_words(text)).strip()})

    def encode(self, inputs: Mapping[int, str | Tagged], target: str | None = None) -> list[Source]:
        sentences = {number: _words(sentence) for number, sentence in inputs.items()}
        for number, words in sentences.items():
            if not words or not all(word.strip() for word in words):
                raise InputError(f"input {number} is empty, or has an empty word")
            if len(words) > MAX_WORDS:
                raise InputError(f"input {number} has {len(words):,} words; a sentence has at most {MAX_WORDS:,}")
            if (longest := max(map(len, words))) > MAX_SYMBOL:
                raise InputError(f"input {number} has a word of {longest:,} characters; the limit is {MAX_SYMBOL:,}")
        parsed = [parsed_encoding(self.tokenizer.source, ParsedSentence(words, ())) for words in sentences.values()]
        limit = self.model.config.max_length
        for (number, words), (encoding, _) in zip(sentences.items(), parsed, strict=True):
            if (size := max(len(encoding), len(words) + 2)) > limit:
                raise InputError(f"input {number} has {size:,} tokens; this model takes at most {limit:,}")
        return [
            Source(" ".join(words), encoding, tree, words)
            for words, (encoding, tree) in zip(sentences.values(), parsed, strict=True)
        ]

    def _batch(self, pairs: Sequence[tuple[Source, Sequence[int]]]) -> PairBatch:
        config = self.model.config
        encoded = [sentence_pair(source.encoding.ids, target, source.tree, config) for source, target in pairs]
        batch = collate(encoded, begin=self.special_tokens.begin, end=self.special_tokens.end)
        return with_trees(batch, encoded).to(self.model.device)

    def answer(self, source: Source, hypothesis: Hypothesis, maps: AttentionMaps | None = None) -> Parse:
        symbols = tuple(map(self.tokenizer.target.id_to_token, hypothesis.tokens))
        tree = Tree.from_symbols(symbols, source.words, self.name)
        return Parse(
            source.text,
            str(tree),
            hypothesis.score,
            partial(self._attention_of, source, hypothesis) if maps is None else maps,
            self.tokenizer.source.unknown_pieces(source.encoding),
            len(hypothesis.tokens),
            tree=tree,
            symbols=symbols,
        )


def sentence_pair(
    source: Sequence[int], target: Sequence[int], tree: DependencyTree | None, config: Any
) -> EncodedPair:
    """Return a pair with the positions of the words, if the model has a source pointer."""
    if tree is None or not getattr(config, "pointer", False):
        return EncodedPair(source, target)
    return WordPair(source, target, word_starts(tree))


def can_parse(tokenizer: Tokenizer) -> bool:
    """Whether the target vocabulary of a model is that of trees: as many labeled brackets open as close."""
    target = tokenizer.target
    brackets = [symbol for symbol in target.vocab if symbol[:1] in ("(", ")") and len(symbol) > 1]
    return target is not tokenizer.source and 0 < len(brackets) == 2 * len(_labels(target.vocab))


def terminals(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the target tokens that are not brackets: each consumes a word."""
    special = tokenizer.target.special_tokens.ids
    return tuple(
        sorted(
            token for symbol, token in tokenizer.target.vocab.items() if symbol[0] not in "()" and token not in special
        )
    )


def _labels(vocab: Mapping[str, int]) -> list[str]:
    return sorted(
        symbol[1:] for symbol in vocab if symbol.startswith("(") and len(symbol) > 1 and f"){symbol[1:]}" in vocab
    )


def _words(sentence: str | Tagged) -> tuple[str, ...]:
    if isinstance(sentence, Tagged):
        return tuple(map(escape_brackets, sentence.words))
    return tuple(escape_brackets(sentence[start:end]) for start, end in split_words(sentence))
