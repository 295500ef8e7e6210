"""Translation task: sequence-to-sequence learning from pairs of texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any, ClassVar

import torch

from qkv.config import NonNegativeFloat, Rate, require
from qkv.datasets.batching import (
    IGNORE,
    EncodedPair,
    PairBatch,
    batch_by_length,
    collate,
    collate_to_shape,
    shuffled_batches,
)
from qkv.datasets.dataset import Dataset, PairDataset
from qkv.datasets.examples.pair import Pair, target_language
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.metrics import Metric
from qkv.metrics.alignment_metrics import alignment_accuracy
from qkv.metrics.rouge import ROUGE_SIGNATURE, rouge_scores
from qkv.metrics.text_metrics import (
    MetricValue,
    bleu,
    bleu_by_length,
    chrf,
    confidence_intervals,
    exact_match,
    pair_scores,
    phoneme_error_rate,
    pronunciation_scores,
    sentence_chrf,
)
from qkv.nn.interfaces import EncoderDecoder
from qkv.nn.losses import alignment_loss, mean_cross_entropy, r_drop_loss, token_cross_entropy
from qkv.pipelines.inputs.tree_inputs import (
    ParsedPair,
    parsed_ids,
    reads_trees,
    require_heads,
    tree_arguments,
    with_trees,
)
from qkv.pipelines.output import Answer
from qkv.pipelines.pipeline import DecoderTokens
from qkv.pipelines.translator import GREEDY, Translator
from qkv.registry import register
from qkv.runtime.text import printable
from qkv.tasks.base.evaluation import Evaluation, Mistake, worst
from qkv.tasks.base.lead import lead_scores
from qkv.tasks.base.scheduled_sampling import ScheduledSampling
from qkv.tasks.base.task import LOSS, Sample, Task, TaskConfig
from qkv.tasks.base.text_noise import TextNoise
from qkv.tasks.base.train_config import TrainConfig
from qkv.tokenizers import Tokenizer
from qkv.types import Float, Tensor

MAX_TOKEN_SHOWN = 40  # characters of an unknown token in a note
LANGUAGE_METRICS = ("bleu", "bleu_tokenised", "chrf")  # of each of several target languages


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs of texts with their token ids."""

    pairs: list[Pair]
    tokens: list[EncodedPair]

    def __len__(self) -> int:
        return len(self.pairs)


class TranslationConfig(TaskConfig):
    """Options of the task."""

    label_smoothing: Rate = 0.0  # label smoothing of the cross-entropy
    bpe_dropout: Rate = 0.0  # probability of dropping a BPE merge, resampled per epoch (Provilkov et al. 2020)
    r_drop: NonNegativeFloat = 0.0  # alpha of R-Drop: outputs under two dropout masks must agree (Wu et al. 2021)
    scheduled_sampling: ScheduledSampling | None = None  # feed the model's own tokens in training, more and more
    text_noise: TextNoise | None = None  # train on phrases, other letter case, no punctuation, ..., too


@register("task", "translate")
class TranslationTask(Task):
    """Cross-entropy of the next target token."""

    title = "translation"
    cli_command = "translate"
    metrics: ClassVar = {
        "loss": LOSS,
        "exact": Metric("exact", percent=True),
        "bleu": Metric("bleu"),
        "chrf": Metric("chrf"),
        "rouge_1": Metric("ROUGE-1", percent=True),
        "rouge_2": Metric("ROUGE-2", percent=True),
        "rouge_l": Metric("ROUGE-L", percent=True),
    }
    test_metrics: ClassVar = {
        "exact": Metric("exact match", percent=True),
        "cer": Metric("character error rate", higher_is_better=False, percent=True),
        "bleu": Metric("BLEU"),
        "bleu_lowercased": Metric("BLEU, lowercased"),
        "bleu_tokenised": Metric("BLEU, lowercased, tokenized"),
        "chrf": Metric("chrF"),
        "alignment": Metric("alignment accuracy", percent=True),
        "per": Metric("phoneme error rate", higher_is_better=False, percent=True),
        "wer": Metric("word error rate", higher_is_better=False, percent=True),
        "lead_rouge_1": Metric("ROUGE-1 of lead-3", percent=True),
        "lead_rouge_2": Metric("ROUGE-2 of lead-3", percent=True),
        "lead_rouge_l": Metric("ROUGE-L of lead-3", percent=True),
    }
    searches = True
    model = EncoderDecoder
    datasets: ClassVar[tuple[type[Dataset[Any]], ...]] = (PairDataset,)
    config_class = TranslationConfig
    from_data: ClassVar[tuple[str, ...]] = ("source_vocab_size", "target_vocab_size")
    capturable = True

    @classmethod
    def metric(cls, name: str) -> Metric:
        if name in cls.test_metrics or name in cls.metrics:
            return super().metric(name)
        base, _, language = name.rpartition("_")  # a score of one of several target languages
        metric = super().metric(base)
        return replace(metric, name=f"{metric.name}, {language}")

    @classmethod
    def check_recipe(cls, options: Any, data: Any, model: Any) -> None:
        names = {data.tokenizer.name, (data.target_tokenizer or data.tokenizer).name}
        require(
            not options.bpe_dropout or names == {"bpe"},
            f"task.bpe_dropout needs subwords (data.tokenizer.name = bpe), not {' and '.join(sorted(names))}",
        )
        require(
            data.target_tokenizer is None or not getattr(model, "copying", False),
            "model.copying needs a shared vocabulary: remove data.target_tokenizer",
        )
        require(
            options.text_noise is None or not reads_trees(model),
            "task.text_noise does not fit dependency trees: remove it or choose another model.position",
        )

    @classmethod
    def sizes(cls, data: Any, tokenizer: Tokenizer) -> dict[str, Any]:
        return {"source_vocab_size": len(tokenizer.source), "target_vocab_size": len(tokenizer.target)}

    def setup(self, data: Any) -> None:
        """Encode the data, skipping pairs longer than the model allows with a note."""
        self.max_length: int = self.model_config.max_length  # of a pair in tokens
        self.special_tokens = DecoderTokens.from_tokenizer(self.tokenizer.target, self.model_config)
        if reads_trees(self.model_config):  # check all splits before training
            for split, pairs in data.splits.items():
                for number, pair in enumerate(pairs, start=1):
                    require_heads(pair.source_input, f"{split}: pair {number}")
        self.train = self._fitting(data.splits["train"], "training")
        valid, size = self._fitting(data.splits["valid"], "validation"), self.train_config.valid_size
        self.valid = EncodedPairs(valid.pairs[:size], valid.tokens[:size])
        noise = self.options.text_noise
        self.alignment = None if noise is None else noise.align(self.train.pairs)
        self.epoch_pairs = self.train.tokens  # as tokenized in this epoch
        self.sampling_probability = 0.0  # of feeding the model's own token
        self.capturable = self.options.scheduled_sampling is None  # a recording would keep the probability

    def _fitting(self, pairs: list[Pair], name: str) -> EncodedPairs:
        """Encode the pairs that are not longer than the model allows, and note how many are skipped."""
        encoded = zip(pairs, self._encode(pairs), strict=True)
        kept = [(pair, tokens) for pair, tokens in encoded if tokens.length <= self.max_length]
        if pairs and not kept:
            raise InputError(f"every {name} pair is longer than model.max_length = {self.max_length} tokens")
        if skipped := len(pairs) - len(kept):
            self.notes += (f"skipped {skipped} {name} pair(s) longer than {self.max_length} tokens",)
        return EncodedPairs([pair for pair, _ in kept], [tokens for _, tokens in kept])

    def _encode(self, pairs: list[Pair], dropout: float = 0.0, seed: tuple[int, ...] = ()) -> list[EncodedPair]:
        return encode(self.tokenizer, pairs, dropout=dropout, seed=seed, trees=reads_trees(self.model_config))

    def describe(self) -> str:
        return f"{len(self.train):,} pairs"

    def epoch(self, number: int) -> list[list[int]]:
        self.epoch_pairs = self._augment(number)
        return shuffled_batches(
            [pair.length for pair in self.epoch_pairs], self.train_config.batching, self.seed, number
        )

    def set_progress(self, done: float) -> None:
        """Set the probability of feeding the model's own token, given the fraction of the training that is over."""
        if (schedule := self.options.scheduled_sampling) is not None:
            self.sampling_probability = schedule.probability(done)

    def _augment(self, epoch: int) -> list[EncodedPair]:
        """Tokens of the training pairs in an epoch, with noise and BPE-dropout; too long pairs stay as they are."""
        dropout, noise, plain = self.options.bpe_dropout, self.options.text_noise, self.train.pairs
        if not dropout and noise is None:
            return self.train.tokens
        pairs = plain if noise is None else noise.apply(plain, self.seed, epoch, self.alignment)
        changed = [row for row, pair in enumerate(pairs) if dropout or pair is not plain[row]]
        tokens = list(self.train.tokens)
        for row, encoded in zip(
            changed, self._encode([pairs[row] for row in changed], dropout, (self.seed, epoch)), strict=True
        ):
            if encoded.length <= self.max_length:
                tokens[row] = encoded
        return tokens

    def batch(self, rows: Sequence[int], *, padded_to_shape: bool = False) -> PairBatch:
        return self._collate([self.epoch_pairs[row] for row in rows], padded_to_shape=padded_to_shape)

    def _collate(self, pairs: list[EncodedPair], *, padded_to_shape: bool = False) -> PairBatch:
        begin, end = self.special_tokens.begin, self.special_tokens.end
        if padded_to_shape:
            batch = collate_to_shape(pairs, self.train_config.batching, self.max_length, begin=begin, end=end)
        else:
            batch = collate(pairs, begin=begin, end=end)
        return with_trees(batch, pairs)

    def loss(self, model: EncoderDecoder[Any, Any], batch: PairBatch) -> Float[Tensor, ""]:
        """Mean cross-entropy of the target tokens in nats, plus the terms of R-Drop and of REINFORCE."""
        alpha = self.options.r_drop if model.training else 0.0
        if alpha:  # one pass over the batch twice, with different dropout
            batch = batch.with_tensors({name: torch.cat((tensor, tensor)) for name, tensor in batch.tensors.items()})
        logits = self._train_logits(model, batch)
        divergence = alpha * r_drop_loss(logits, batch.target_out, IGNORE) if alpha else 0.0
        reward = alignment_loss(model, logits, batch.target_out, IGNORE)
        loss = mean_cross_entropy(logits, batch.target_out, IGNORE, self.options.label_smoothing, consume=True)
        return loss + divergence if reward is None else loss + divergence + reward

    def _train_logits(self, model: EncoderDecoder[Any, Any], batch: PairBatch) -> Float[Tensor, "batch target tokens"]:
        schedule = self.options.scheduled_sampling
        if schedule is None or self.sampling_probability == 0:
            return model(batch.source, batch.target_in, batch.source_lengths, **tree_arguments(batch))
        memory = model.encode(batch.source, batch.source_lengths, **tree_arguments(batch))
        return model.decode_with_sampling(batch.target_in, memory, self.sampling_probability, schedule.sample)

    def validation_loss(self, model: EncoderDecoder[Any, Any]) -> float:
        """Mean cross-entropy of the validation targets in nats."""
        return self.mean_loss(model, self.valid.tokens)

    @torch.inference_mode()
    def mean_loss(self, model: EncoderDecoder[Any, Any], pairs: Sequence[EncodedPair]) -> float:
        """Mean cross-entropy of the targets of pairs in nats."""
        total, tokens = 0.0, 0
        for rows in batch_by_length([pair.length for pair in pairs], self.train_config.batching):
            batch = self._collate([pairs[row] for row in rows]).to(model.device)
            logits = model(batch.source, batch.target_in, batch.source_lengths, **tree_arguments(batch))
            total += token_cross_entropy(logits, batch.target_out, IGNORE).item()
            tokens += batch.tokens
        return total / tokens

    @torch.inference_mode()
    def validate(self, model: EncoderDecoder[Any, Any]) -> dict[str, float]:
        """Loss, exact match, BLEU and chrF of greedy decoding on the validation pairs."""
        loss = self.validation_loss(model)
        translator = Translator(model, self.tokenizer, use_engine=model.device.type == "cpu")
        translations = translator([pair.source_input for pair in self.valid.pairs])
        texts = [translation.text for translation in translations]
        references = [self.tokenizer.target.normalize(pair.target) for pair in self.valid.pairs]
        return {
            "loss": loss,
            "exact": exact_match(texts, references),
            "bleu": bleu(texts, references).value,
            "chrf": chrf(texts, references).value,
            # ROUGE is slow: it is computed if it selects the best checkpoint, and by `evaluate`.
            **(rouge_scores(texts, references) if self.train_config.best_by.startswith("rouge") else {}),
        }

    def samples(self, model: EncoderDecoder[Any, Any], count: int) -> list[Sample]:
        pairs = self.valid.pairs[:count]
        answers = Translator(model, self.tokenizer, use_engine=False)([pair.source_input for pair in pairs])
        return [Sample(pair.source, answer.text, pair.target) for pair, answer in zip(pairs, answers, strict=True)]

    @classmethod
    def for_evaluation(
        cls, data: Any, model: Any, options: TranslationConfig, train: TrainConfig, seed: int
    ) -> "TranslationTask":
        data = replace(data, splits={"train": [], "valid": []})
        return cls(data, model.tokenizer, model.config, options, train, seed)

    def evaluate(
        self,
        model: EncoderDecoder[Any, Any],
        data: PairDataset,
        split: str,
        search: GenerationConfig = GREEDY,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Evaluation:
        """Translate the sources of a split and score the translations."""
        translator = Translator(model, self.tokenizer)
        pairs = data.splits[split]
        fitting = [pair for pair in pairs if translator.fits(pair.source)]
        if not fitting:
            raise InputError(f"{split}: there are no pairs to evaluate on")
        translate = partial(translator.best, config=search, progress=progress)
        if data.pronunciations:
            evaluation = _score_pronunciations(translate, fitting)
        elif data.source_tokens:
            evaluation = score_languages(translate, fitting)
        else:
            evaluation = _score_pairs(translate, fitting, data)
        return replace(evaluation, skipped=len(pairs) - len(fitting))

    def notes_on(self, data: PairDataset, split: str) -> tuple[str, ...]:
        tokenizer = self.tokenizer.source
        encodings = tokenizer.encode_with_offsets([pair.source for pair in data.splits[split]])
        unknown = [pieces for encoding in encodings if (pieces := tokenizer.unknown_pieces(encoding))]
        if not unknown:
            return ()
        tokens = list(dict.fromkeys(chain.from_iterable(unknown)))[:10]
        names = ", ".join(printable(repr(token), MAX_TOKEN_SHOWN) for token in tokens)
        return (f"{len(unknown):,} source(s) contain out-of-vocabulary tokens: {names}",)


def _score_pairs(translate: Callable[..., list[Answer]], pairs: Sequence[Pair], data: PairDataset) -> Evaluation:
    """Score one translation per pair; alignments are scored if all pairs have gold ones, summaries also by lead-3."""
    aligned = all(pair.gold is not None for pair in pairs)
    answers = translate([pair.source_input for pair in pairs], attention=aligned)
    texts, references = tuple(answer.text for answer in answers), [pair.target for pair in pairs]
    scores = pair_scores(texts, references, data.target_language)
    if data.separator:
        lead = lead_scores(pairs, data.separator)
        scores |= {f"lead_{name}": MetricValue(value, ROUGE_SIGNATURE) for name, value in lead.items()}
    if aligned and (alignment := _alignment(answers, pairs)) is not None:
        scores["alignment"] = MetricValue(alignment)
    return Evaluation(
        len(pairs),
        "pairs",
        {name: score.value for name, score in scores.items()},
        {name: score.signature for name, score in scores.items() if score.signature},
        by_length=bleu_by_length(texts, [pair.source for pair in pairs], references, data.target_language),
        outputs=texts,
        mistakes=_mistakes(pairs, texts),
        mistake_score="chrF",
        intervals=confidence_intervals(texts, references),
    )


def score_languages(translate: Callable[..., list[Answer]], pairs: Sequence[Pair]) -> Evaluation:
    """Score the translations into each target language, named like "bleu_de", and their means over the languages."""
    texts = tuple(answer.text for answer in translate([pair.source for pair in pairs]))
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows.setdefault(target_language(pair.source), []).append(row)
    by_language = {
        language: pair_scores([texts[row] for row in own], [pairs[row].target for row in own], language)
        for language, own in rows.items()
    }
    values, signatures = {}, {}
    for name in LANGUAGE_METRICS:
        values[name] = fmean(scores[name].value for scores in by_language.values())
        signatures[name] = f"mean of {', '.join(by_language)}"
        for language, scores in by_language.items():
            values[f"{name}_{language}"] = scores[name].value
            signatures[f"{name}_{language}"] = scores[name].signature
    return Evaluation(
        len(pairs), "pairs", values, signatures,
        outputs=texts, mistakes=_mistakes(pairs, texts), mistake_score="chrF",
    )  # fmt: skip


def _mistakes(pairs: Sequence[Pair], texts: Sequence[str]) -> tuple[Mistake, ...]:
    """Return the translations that differ most from their references, by chrF."""
    return worst(
        Mistake(pair.source, text, pair.target, sentence_chrf(text, pair.target))
        for pair, text in zip(pairs, texts, strict=True)
        if text != pair.target
    )


def _score_pronunciations(translate: Callable[..., list[Answer]], pairs: Sequence[Pair]) -> Evaluation:
    """Score one prediction per distinct word against all of its pronunciations."""
    variants: dict[str, list[str]] = {}
    for pair in pairs:
        variants.setdefault(pair.source, []).append(pair.target)
    texts = tuple(answer.text for answer in translate(list(variants)))
    scores = pronunciation_scores(texts, list(variants.values()))
    wrong = (
        Mistake(word, text, " | ".join(listed), 1 - phoneme_error_rate([text], [listed]))
        for (word, listed), text in zip(variants.items(), texts, strict=True)
        if text.split() not in [reference.split() for reference in listed]
    )
    values = {name: score.value for name, score in scores.items()}
    return Evaluation(
        len(pairs), "pairs", values, outputs=texts, mistakes=worst(wrong), mistake_score="1 - phoneme error rate"
    )


def _alignment(answers: Sequence[Answer], pairs: Sequence[Pair]) -> float | None:
    """Return the alignment accuracy; None unless tokens are characters, as in the gold alignments."""
    alignments = [
        (answer.attention[0].average, pair.gold)
        for answer, pair in zip(answers, pairs, strict=True)
        if answer.attention and len(answer.attention[0].columns) == len(pair.source) and pair.gold is not None
    ]
    return alignment_accuracy(alignments) if len(alignments) == len(pairs) else None


def encode(
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    dropout: float = 0.0,
    seed: tuple[int, ...] = (),
    trees: bool = False,
) -> list[EncodedPair]:
    """Token ids of pairs, with BPE `dropout` drawn from the seed, and with the `trees` of the sources.

    Sources include the special tokens a released model expects; those of the targets are added in each batch.
    """
    target_seed, source_seed = (*seed, 1), (*seed, 0)
    targets = tokenizer.target.encode([pair.target for pair in pairs], dropout=dropout, seed=target_seed)
    if trees:
        sentences = [require_heads(pair.source_input, f"pair {number}") for number, pair in enumerate(pairs, start=1)]
        parsed_sources = parsed_ids(tokenizer.source, sentences, dropout=dropout, seed=source_seed)
        return [ParsedPair(ids, target, tree) for (ids, tree), target in zip(parsed_sources, targets, strict=True)]
    texts = [pair.source for pair in pairs]
    sources = tokenizer.source.encode(texts, add_special_tokens=True, dropout=dropout, seed=source_seed)
    return [EncodedPair(source, target) for source, target in zip(sources, targets, strict=True)]
