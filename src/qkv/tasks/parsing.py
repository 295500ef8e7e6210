"""Parsing task: sentences into linearized constituency trees (Vinyals et al. 2015)."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, ClassVar

from qkv.config import require
from qkv.datasets.batching import EncodedPair
from qkv.datasets.dataset import Dataset, DatasetConfig, PairDataset, TreeDataset
from qkv.datasets.examples.pair import Pair
from qkv.datasets.examples.trees import NO_TAG, Tree
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.metrics import Metric
from qkv.metrics.bracket_metrics import bracket_scores
from qkv.metrics.tag_metrics import tag_accuracy
from qkv.nn.interfaces import EncoderDecoder
from qkv.pipelines.inputs.tree_inputs import ParsedSentence, parsed_ids
from qkv.pipelines.parser import Parse, Parser, sentence_pair, terminals
from qkv.pipelines.translator import GREEDY
from qkv.registry import register
from qkv.tasks.base.evaluation import Evaluation, Mistake, worst
from qkv.tasks.base.task import LOSS, Sample, train_tokenizer
from qkv.tasks.translation import TranslationConfig, TranslationTask
from qkv.tokenizers import PairTokenizer, Tokenizer, WordTokenizer


class ParsingConfig(TranslationConfig):
    """Options of the task; BPE-dropout applies to the words."""

    tags: bool = True  # predict the tag of each word; false: the symbol XX for every word, as in the paper


@register("task", "parse")
class ParsingTask(TranslationTask):
    """Cross-entropy of the next symbol of the linearized tree; decoded trees are always well-formed."""

    title = "parsing"
    cli_command = "parse"
    metrics: ClassVar = {
        "loss": LOSS,
        "f1": Metric("F1", percent=True),
        "precision": Metric("precision", percent=True),
        "recall": Metric("recall", percent=True),
        "exact": Metric("exact", percent=True),
        "tags": Metric("tags", percent=True),
    }
    test_metrics: ClassVar = {
        "f1": Metric("labeled bracket F1", percent=True),
        "precision": Metric("labeled precision", percent=True),
        "recall": Metric("labeled recall", percent=True),
        "exact": Metric("exact match", percent=True),
        "tags": Metric("tag accuracy", percent=True),
        "well_formed": Metric("well-formed trees", percent=True),
    }
    datasets = (TreeDataset,)
    from_data = (*TranslationTask.from_data, "consuming_tokens")
    config_class = ParsingConfig
    evaluation_unit = "sentences"

    @classmethod
    def check_recipe(cls, options: Any, data: Any, model: Any) -> None:
        require(
            not options.bpe_dropout or data.tokenizer.name == "bpe",
            f"task.bpe_dropout needs subwords (data.tokenizer.name = bpe), not {data.tokenizer.name}",
        )
        require(not options.text_noise, "task.text_noise is not supported for parsing: remove it")

    @classmethod
    def train_tokenizer(cls, data: Dataset[Any], config: DatasetConfig, model: Any) -> Tokenizer:
        """Train the tokenizer of the words, and collect the symbols of the trees."""
        source = train_tokenizer(data, config)
        assert source is not None
        symbols = Counter(chain.from_iterable(tree.symbols() for tree in data.splits["train"]))
        return PairTokenizer(source, WordTokenizer.from_counts(symbols | Counter([NO_TAG])))

    @classmethod
    def sizes(cls, data: Any, tokenizer: Tokenizer) -> dict[str, Any]:
        return {**super().sizes(data, tokenizer), "consuming_tokens": terminals(tokenizer)}

    def setup(self, data: Any) -> None:
        splits = {split: [self._pair(tree) for tree in trees] for split, trees in data.splits.items()}
        super().setup(PairDataset({split: splits[split] for split in ("train", "valid")}))

    def _pair(self, tree: Tree) -> Pair:
        return Pair(tree.text, " ".join(tree.symbols(tags=self.options.tags)), parsed=tree.source_input)

    def _encode(self, pairs: list[Pair], dropout: float = 0.0, seed: tuple[int, ...] = ()) -> list[EncodedPair]:
        """Encode pairs; unlike words, symbols are never split."""
        sentences = [ParsedSentence(tuple(pair.source.split(" ")), ()) for pair in pairs]
        sources = parsed_ids(self.tokenizer.source, sentences, dropout=dropout, seed=seed)
        targets = self.tokenizer.target.encode([pair.target for pair in pairs])
        return [
            sentence_pair(source, target, words, self.model_config)
            for (source, words), target in zip(sources, targets, strict=True)
        ]

    def describe(self) -> str:
        return f"{len(self.train):,} sentences"

    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, and scores of greedy decoding on the validation sentences."""
        parser = Parser(model, self.tokenizer, use_engine=model.device.type == "cpu")
        parses = parser([pair.source_input for pair in self.valid.pairs])
        trees = [_reference(pair) for pair in self.valid.pairs]
        scores = tree_scores(parses, trees, tags=self.options.tags)
        return {"loss": self.validation_loss(model), **{name: scores[name] for name in self.metrics if name in scores}}

    def samples(self, model: EncoderDecoder[Any, Any], count: int) -> list[Sample]:
        pairs = self.valid.pairs[:count]
        parses = Parser(model, self.tokenizer, use_engine=False)([pair.source_input for pair in pairs])
        return [
            Sample(pair.source, parse.text, str(_reference(pair))) for pair, parse in zip(pairs, parses, strict=True)
        ]

    def evaluate(
        self,
        model: EncoderDecoder[Any, Any],
        data: Any,
        split: str,
        search: GenerationConfig = GREEDY,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Evaluation:
        """Parse the sentences of a split and compare the trees with the references."""
        parser = Parser(model, self.tokenizer)
        trees = [tree for tree in data.splits[split] if parser.fits(tree.source_input)]
        if not trees:
            raise InputError(f"{split}: there are no sentences to evaluate on")
        parses: dict[int, Any] = {}
        for index, best in parser.stream([tree.source_input for tree in trees], search):
            parses[index] = best[0]
            progress(len(parses))
        answers = [parses[index] for index in range(len(trees))]
        wrong = (
            Mistake(tree.text, answer.text, str(tree), bracket_scores([answer.tree], [tree]).f1)
            for tree, answer in zip(trees, answers, strict=True)
            if answer.tree.constituents != tree.constituents
        )
        return Evaluation(
            len(trees),
            self.evaluation_unit,
            tree_scores(answers, trees, tags=self.options.tags),
            outputs=tuple(answer.text for answer in answers),
            mistakes=worst(wrong),
            mistake_score="F1 of the brackets",
            skipped=len(data.splits[split]) - len(trees),
        )

    def notes_on(self, data: Any, split: str) -> tuple[str, ...]:
        return ()


def tree_scores(parses: Sequence[Parse], references: Sequence[Tree], *, tags: bool) -> dict[str, float]:
    """Bracket scores, the fraction of well-formed trees, and the accuracy of the tags if they are predicted."""
    scores = asdict(bracket_scores([parse.tree for parse in parses], references))
    if tags:
        scores["tags"] = tag_accuracy([parse.tree.tags for parse in parses], [tree.tags for tree in references])
    well_formed = map(_is_well_formed, parses, references)
    return {**scores, "well_formed": sum(well_formed) / max(1, len(references))}


def _is_well_formed(parse: Parse, reference: Tree) -> bool:
    """Whether a printed tree can be read again, and has the words of the sentence."""
    try:
        return Tree.parse(parse.text, "output").words == reference.words
    except InputError:
        return False


def _reference(pair: Pair) -> Tree:
    assert pair.parsed is not None
    tree = Tree.from_symbols(pair.target.split(), pair.parsed.words, "reference")
    return Tree(tree.words, pair.parsed.tags, tree.constituents)
