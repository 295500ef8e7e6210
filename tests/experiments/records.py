"""Example records."""

from dataclasses import replace
from typing import Any

from qkv.experiments.results import Bucket, Measure, Record

SIGNATURE = "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0|words:moses-de"
RECORD = Record(
    recipe="multi30k-gru",
    changes=(),
    seed=0,
    task="translate",
    model="rnn_seq2seq",
    parameters=11_234_567,
    steps=3000,
    minutes=3.25,
    finished=True,
    data="multi30k",
    languages="en-de",
    lowercase=False,
    data_hash="ab" * 32,
    split="test_2016_flickr",
    size=1000,
    left_out=0,
    beam=5,
    length_penalty=1.0,
    metrics=(Measure("bleu_tokenised", 38.5, SIGNATURE), Measure("bleu", 37.25, "tok:13a")),
    trained_on="NVIDIA H200",
    device="NVIDIA H200",
    torch="2.11.0",
    version="0.1.0",
    commit="c" * 40,
    source_hash="d" * 64,
    date="2026-11-15T14:00:00+00:00",
    seconds=3.0,
    by_length=(Bucket(1, 7, 600, 40.0), Bucket(8, None, 400, 36.0)),
    precision="bfloat16",
    graphs=True,
    trained_torch="2.11.0",
    trained_commit="c" * 40,
    trained_source_hash="d" * 64,
)


def record(bleu: float = 38.5, **changes: Any) -> Record:
    """Return RECORD with changes."""
    metrics = (Measure("bleu_tokenised", bleu, SIGNATURE), Measure("bleu", bleu - 1, "tok:13a"))
    return replace(RECORD, **({"metrics": metrics} | changes))
