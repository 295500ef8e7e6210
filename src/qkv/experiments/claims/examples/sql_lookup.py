"""Worked example: a database query as attention."""

import torch

from qkv.attention import Dot, attend
from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Mean
from qkv.registry import register
from qkv.types import Float, Tensor

IDS = ("005123174812", "015843268901", "005123174823")
QUERIES = {"equal": "015843268901", "like": "00512317%"}
EXPECTED = {"equal": (0.0, 1.0, 0.0), "like": (0.5, 0.0, 0.5)}
SHARPNESS = 20.0  # factor of the query: weights of keys with fewer equal digits vanish


@register("claim", "sql-lookup")
class SqlLookup(SampledClaim):
    """Weights of the rows of a table for two queries, with the digits of their keys as one-hot vectors."""

    number = 58
    title = "Worked example: a database query as attention"
    statement = (
        "Retrieving rows of a table by their key is a sum of values weighted by the similarity of query and key: a "
        "query for one key returns its row, a query for a prefix all rows that match."
    )
    notes = (Note("003", "Generalized model of attention"),)
    equation = "sum_i similarity(q, k_i) v_i,   similarity = softmax over the number of equal digits, times 20"
    source = ("src/qkv/attention/operator.py::attend", "src/qkv/experiments/claims/examples/sql_lookup.py::row_weights")
    hypothesis = (
        "The weights of the query for one key are 0, 1, 0; those of the query for the prefix are 1/2, 0, 1/2, since "
        "attention returns the mean of both rows where SQL returns a list (differences below 1e-6)."
    )
    criteria = tuple(Mean(f"largest difference: {name}", high=1e-6) for name in QUERIES)
    figure = (
        Panel("Weights of the rows", "weight", tuple(f"weight by row: {name}" for name in QUERIES), x_label="row"),
    )
    limits = "With a smaller factor, rows whose keys share many digits with the query get weight as well."
    deterministic = True
    seeds = 1

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        values, series = {}, {}
        for name, query in QUERIES.items():
            weights = row_weights(query)
            pairs = zip(weights, EXPECTED[name], strict=True)
            values[f"largest difference: {name}"] = max(abs(weight - expected) for weight, expected in pairs)
            series[f"weight by row: {name}"] = dict(enumerate(weights, start=1))
        return Sample(values, series)


def row_weights(query: str) -> list[float]:
    """Return the attention weight of each row for a key, or for a prefix that ends with %."""
    keys = torch.stack([one_hot(key) for key in IDS])[None, None]
    features = SHARPNESS * one_hot(query.removesuffix("%"))[None, None, None]
    attended = attend(features, keys, torch.eye(len(IDS), dtype=torch.float64)[None, None], score=Dot())
    return attended.output[0, 0, 0].tolist()


def one_hot(digits: str) -> Float[Tensor, "features"]:
    """Return ten features per digit of a key; those of missing digits are zero."""
    features = torch.zeros(len(IDS[0]), 10, dtype=torch.float64)
    for position, digit in enumerate(digits):
        features[position, int(digit)] = 1.0
    return features.flatten()
