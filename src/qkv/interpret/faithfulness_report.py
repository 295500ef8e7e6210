"""A report on the attribution methods: how faithful they are to a model on many examples, with intervals.

Values are averaged over the explained outputs of an example, then over examples. Intervals are bootstrap percentiles
over the examples (2,000 resamples).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.datasets.dataset import CaptionDataset, Dataset, ImageDataset, PairDataset
from qkv.datasets.examples.captions import Named
from qkv.errors import InputError
from qkv.interpret.attribution import AttributionOptions, Scores, attribute, unsupported
from qkv.interpret.explainable import Explainable
from qkv.interpret.explanation import ExplainedPipeline, build_explainable
from qkv.interpret.faithfulness import BINS, head_effects, measure_faithfulness, rank_agreement
from qkv.interpret.reweighting import EPSILON, Reweighting, reweight
from qkv.metrics.alignment_metrics import inside
from qkv.pipelines.captioner import NamedImage

RESAMPLES = 2000
LEVELS = (2.5, 97.5)  # percentiles of a 95 % interval
MAX_OUTPUTS = 3  # explained outputs of an example, chosen at random
MAX_REWEIGHTED = 50  # examples whose attention weights are replaced
FIXED_BIN = BINS.index(0.2)  # fraction of the units whose comprehensiveness is reported on its own
REFERENCE = "leave_one_out"  # method that the others are compared with


@dataclass(frozen=True)
class ReportExample:
    """An input and, if they are known, the units that each output depends on."""

    source: str | NamedImage
    text: str = ""  # the output that `gold` belongs to
    gold: tuple[tuple[int, int] | None, ...] | None = None  # span of units of each output
    objects: tuple[Named, ...] = ()  # in an image

    def gold_units(self, prediction: Explainable, output: int) -> set[int] | None:
        """Return the units that an output depends on; None if they are not known."""
        if prediction.text != self.text:
            return None
        if prediction.grid is None:
            known = self.gold is not None and all(len(unit) == 1 for unit in prediction.units)
            span = self.gold[output] if known and self.gold is not None else None
            return None if span is None else {*range(*span)}
        for named in self.objects:
            if output in named.words and isinstance(self.source, NamedImage):
                size = (self.source.image.shape[1], self.source.image.shape[2])
                cells = range(len(prediction.units))
                return {cell for cell in cells if inside(cell, prediction.grid, size, named.box)}
        return None


def report_examples(data: Dataset[Any], split: str, limit: int) -> list[ReportExample]:
    """Return the first examples of a split of labeled texts, pairs, labeled images or captioned images."""
    examples = data.splits[split][:limit]
    if isinstance(data, PairDataset):
        return [ReportExample(pair.source, pair.target, pair.gold) for pair in examples]
    if isinstance(data, CaptionDataset):
        objects = examples.objects or ((),) * len(examples)
        return [
            ReportExample(NamedImage(f"{split} {number}", image), texts[0], None, named)
            for number, (image, texts, named) in enumerate(zip(examples.images, examples.texts, objects, strict=True))
        ]
    if isinstance(data, ImageDataset):
        return [ReportExample(NamedImage(f"{split} {number}", image)) for number, image in enumerate(examples.pixels)]
    raise InputError(f"a report on a split needs labeled texts, pairs or images, not {data.kind}: use --input FILE")


@dataclass
class MethodValues:
    """Values of a method, one per example."""

    comprehensiveness: list[float] = field(default_factory=list)  # of 20 % of the units
    sufficiency: list[float] = field(default_factory=list)
    aopc_comprehensiveness: list[float] = field(default_factory=list)
    aopc_sufficiency: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)  # Kendall's tau with leave_one_out
    seed_agreement: list[float] = field(default_factory=list)  # Kendall's tau with another model
    gold: list[float] = field(default_factory=list)  # share of outputs whose first unit is a gold one


@dataclass
class FaithfulnessReport:
    """Values of each method, re-weighting of the attention, and the effects of heads."""

    methods: dict[str, MethodValues]
    examples: int = 0
    units: int = 0  # of all examples
    reweightings: list[Reweighting] = field(default_factory=list)
    heads: dict[str, list[float]] = field(default_factory=dict)  # absolute change of log p, by "layer head"
    skipped: list[str] = field(default_factory=list)  # methods and tests that do not apply, with the reason

    def skip(self, reason: str) -> None:
        """Add the reason why a method or test does not apply, once."""
        self.skipped = list(dict.fromkeys([*self.skipped, reason]))


def faithfulness_report(
    pipeline: ExplainedPipeline,
    examples: Sequence[ReportExample],
    methods: Sequence[str],
    *,
    unit: str | None = None,
    other: ExplainedPipeline | None = None,
    options: AttributionOptions | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> FaithfulnessReport:
    """Measure the faithfulness of methods on examples; `other` is a model trained with another seed."""
    report = FaithfulnessReport({})
    options = options or AttributionOptions()
    for number, example in enumerate(examples):
        prediction = build_explainable(pipeline, example.source, unit=unit)
        count = len(prediction.outputs)
        chosen = np.random.default_rng((options.seed, number)).permutation(count)[:MAX_OUTPUTS]
        prediction.select(chosen.tolist())
        if len(prediction.units) < 2:
            continue
        _add_example(report, prediction, example, methods, options, _compared(other, example, unit, prediction))
        if prediction.layers and report.examples < MAX_REWEIGHTED:
            if len(prediction.query_rows(prediction.rows[0])) == 1:
                report.reweightings.append(reweight(prediction, 0, seed=number))
            else:
                report.skip("other attention weights: the attention of several queries is averaged")
            for (layer, head), effect in head_effects(prediction).items():
                report.heads.setdefault(f"{layer} {head}", []).append(float(effect.abs().mean()))
        report.examples += 1
        report.units += len(prediction.units)
        progress(number + 1)
    if not report.examples:
        raise InputError("no example has two or more units")
    return report


def _compared(
    other: ExplainedPipeline | None, example: ReportExample, unit: str | None, prediction: Explainable
) -> Explainable | None:
    """Return the prediction of the other model, if it has the same units and outputs."""
    if other is None:
        return None
    try:
        compared = build_explainable(other, example.source, unit=unit)
    except InputError:  # e.g. an image of another size
        return None
    if compared.units != prediction.units or compared.text != prediction.text:
        return None
    compared.select(prediction.rows)
    return compared


def _add_example(
    report: FaithfulnessReport,
    prediction: Explainable,
    example: ReportExample,
    methods: Sequence[str],
    options: AttributionOptions,
    compared: Explainable | None,
) -> None:
    """Add the values of one example."""
    scores: dict[str, Scores] = {}
    for method in dict.fromkeys([*methods, REFERENCE]):
        if reason := unsupported(prediction, method):
            report.skip(f"{method}: {reason}")
        else:
            seeded = AttributionOptions(options.layers, options.steps, options.seed + report.examples)
            scores[method] = attribute(prediction, method, seeded)
    for method in methods:
        if method not in scores:
            continue
        values = report.methods.setdefault(method, MethodValues())
        measured = measure_faithfulness(prediction, scores[method])
        values.comprehensiveness.append(_mean(m.comprehensiveness[FIXED_BIN] for m in measured))
        values.sufficiency.append(_mean(m.sufficiency[FIXED_BIN] for m in measured))
        values.aopc_comprehensiveness.append(_mean(m.aopc_comprehensiveness for m in measured))
        values.aopc_sufficiency.append(_mean(m.aopc_sufficiency for m in measured))
        values.agreement.append(rank_agreement(scores[method], scores[REFERENCE]))
        if compared is not None:
            values.seed_agreement.append(rank_agreement(scores[method], attribute(compared, method, options)))
        values.gold += list(_gold_hits(prediction, example, scores[method]))


def _gold_hits(prediction: Explainable, example: ReportExample, scores: Scores) -> Iterator[float]:
    """Yield 1 for each output whose unit of greatest score is a gold one, else 0."""
    for row, output in zip(scores, prediction.rows, strict=True):
        units = example.gold_units(prediction, output)
        if units:
            yield float(int(row.argmax()) in units)


def _mean(values: Any) -> float:
    return float(np.nanmean(list(values)))


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean and its bootstrap interval; NaN without values."""
    sample = np.array([value for value in values if not math.isnan(value)])
    if not len(sample):
        return math.nan, math.nan, math.nan
    means = np.random.default_rng(seed).choice(sample, (RESAMPLES, len(sample))).mean(axis=1)
    low, high = np.percentile(means, LEVELS)
    return float(sample.mean()), float(low), float(high)


def summary(report: FaithfulnessReport) -> dict[str, Any]:
    """Return the report as plain data: mean, low and high of each value."""
    baselines = {
        name: report.methods[name].aopc_comprehensiveness for name in ("random", "gradient") if name in report.methods
    }
    rows = {}
    for method, values in report.methods.items():
        row = {name: interval(numbers) for name, numbers in vars(values).items() if numbers}
        for name, baseline in baselines.items():
            if name != method:
                pairs = zip(values.aopc_comprehensiveness, baseline, strict=True)
                row[f"minus_{name}"] = interval([value - other for value, other in pairs])
        rows[method] = row
    summarized: dict[str, Any] = {"examples": report.examples, "units": report.units, "methods": rows}
    if report.reweightings:
        tests = report.reweightings
        summarized["reweighting"] = {
            "examples": len(tests),
            "epsilon": EPSILON,
            "permuted_tvd": interval([test.permuted_tvd for test in tests]),
            "adversarial_jsd": interval([test.adversarial_jsd for test in tests]),
            "max_weight": interval([test.max_weight for test in tests]),
        }
    if report.heads:
        summarized["heads"] = {name: float(np.mean(effects)) for name, effects in report.heads.items()}
    return summarized


COLUMNS = {
    "comprehensiveness": "comprehensiveness, 20 % ↑",
    "sufficiency": "sufficiency, 20 % ↓",
    "aopc_comprehensiveness": "AOPC comprehensiveness ↑",
    "aopc_sufficiency": "AOPC sufficiency ↓",
    "minus_random": "AOPC c. − random",
    "minus_gradient": "AOPC c. − gradient",
    "agreement": "τ, leave-one-out",
    "seed_agreement": "τ, other seed",
    "gold": "gold",
}
SHOWN_HEADS = 5


def to_markdown(report: FaithfulnessReport, title: str) -> str:
    """Return the report as Markdown: a table of the methods, and the tests of the weights and of the heads."""
    data = summary(report)
    used = [name for name in COLUMNS if any(name in row for row in data["methods"].values())]
    lines = [
        f"## {title}",
        "",
        f"{report.examples} examples, {report.units} units. Means with 95 % bootstrap intervals over examples.",
        "",
        f"| method | {' | '.join(COLUMNS[name] for name in used)} |",
        f"|---{'|---' * len(used)}|",
    ]
    for method, row in data["methods"].items():
        lines.append(f"| {method} | {' | '.join(_cell(row.get(name)) for name in used)} |")
    lines += [line for reason in report.skipped for line in ("", f"Not applicable: {reason}.")]
    if "reweighting" in data:
        lines += ["", _reweighting_line(data["reweighting"])]
    if "heads" in data:
        lines += ["", _heads_line(data["heads"])]
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: tuple[float, float, float] | None) -> str:
    return "" if value is None else f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"


def _reweighting_line(test: dict[str, Any]) -> str:
    """Return the results of the two tests of attention weights."""
    return (
        f"Other attention weights (Jain and Wallace), {test['examples']} examples. Permuted weights: the median total "
        f"variation distance of the output is {_cell(test['permuted_tvd'])}. Adversarial weights, with a distance of "
        f"at most {test['epsilon']}: the Jensen-Shannon divergence from the model's weights is "
        f"{_cell(test['adversarial_jsd'])}; the maximum is 0.69. The largest weight is {_cell(test['max_weight'])}."
    )


def _heads_line(heads: dict[str, float]) -> str:
    """Return a sentence on the heads with the greatest effects."""
    ranked = sorted(heads.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {effect:.3f}" for name, effect in ranked[:SHOWN_HEADS])
    median = f"; median of {len(heads)} heads {float(np.median([*heads.values()])):.3f}" if len(heads) > 1 else ""
    return f"Head ablation, mean absolute change of log p: {shown}{median}."
