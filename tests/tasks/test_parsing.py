"""The parsing task: a few trees are memorized, evaluation, BPE-dropout, and recipes that do not fit."""

import pytest
import torch

from qkv.datasets.examples.trees import Tree
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.pipelines.parser import Parser
from qkv.tasks.base.train_config import TrainConfig
from qkv.tasks.parsing import ParsingConfig, ParsingTask
from qkv.training.recipe import Recipe
from tests.pipelines.parsers import DATA, TREES, parsing_tokenizer

SIZES = {
    Transformer: {"dim": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 64, "dropout": 0.0},
    RNNSeq2Seq: {"embedding_dim": 32, "hidden_dim": 32, "dropout": 0.0},
}


def prepared(network, **options):
    torch.manual_seed(0)
    tokenizer = parsing_tokenizer()
    settings = SIZES[network] | ({"tie_embeddings": False} if network is Transformer else {})
    config_class = TransformerConfig if network is Transformer else RNNSeq2SeqConfig
    config = config_class(**ParsingTask.sizes(DATA, tokenizer), **settings, pointer=True, max_length=64)
    task = ParsingTask(DATA, tokenizer, config, ParsingConfig(**options), TrainConfig(batch_size=512), 0)
    return task, network(config)


@pytest.mark.parametrize(
    ("network", "tags"),
    [
        (Transformer, True),
        pytest.param(RNNSeq2Seq, True, marks=pytest.mark.slow),
        pytest.param(Transformer, False, marks=pytest.mark.slow),
    ],
)
def test_a_few_trees_are_memorized(network, tags):
    task, model = prepared(network, tags=tags)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(60):
        for rows in task.epoch(epoch):
            loss = task.loss(model, task.batch(rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    scores = task.validate(model)
    assert scores["loss"] < 0.1
    assert scores["f1"] == scores["precision"] == scores["recall"] == scores["exact"] == 1.0
    evaluation = task.evaluate(model, DATA, "test", GenerationConfig(num_beams=2))
    assert evaluation.size == len(TREES) - 2
    assert (evaluation.scores["f1"], evaluation.scores["well_formed"]) == (1.0, 1.0)
    assert ("tags" in evaluation.scores) is tags
    assert evaluation.mistakes == ()
    if tags:
        assert evaluation.outputs == tuple(map(str, TREES[2:]))
        assert task.samples(model, 1)[0].output == str(TREES[0])


def test_scores_of_wrong_trees_are_those_of_the_metric(monkeypatch):
    """Every tree is predicted as one flat S: of the 5 + 1 brackets of two references, one each is right."""
    task, model = prepared(Transformer)
    flat = [Tree(tree.words, tree.tags, (("S", 0, len(tree.words)),)) for tree in DATA.splits["valid"]]
    answers = Parser(model.eval(), task.tokenizer)([tree.source_input for tree in DATA.splits["valid"]])
    for answer, tree in zip(answers, flat, strict=True):
        object.__setattr__(answer, "tree", tree)
    monkeypatch.setattr(Parser, "__call__", lambda self, sentences, **options: answers)
    scores = task.validate(model)
    wanted = sum(len(tree.constituents) for tree in DATA.splits["valid"])
    assert scores["precision"] == 1.0  # S over all words is in both references
    assert scores["recall"] == pytest.approx(2 / wanted)


def test_bpe_dropout_splits_words_and_not_symbols():
    task, _ = prepared(Transformer, bpe_dropout=0.9)
    plain = list(task.train.tokens)
    task.epoch(1)
    assert any(len(pair.source) > len(other.source) for pair, other in zip(task.epoch_pairs, plain, strict=True))
    for pair, other, tree in zip(task.epoch_pairs, plain, TREES, strict=True):
        assert list(pair.target) == list(other.target)
        assert len(pair.word_starts) == len(tree.words)
        pieces = "".join(map(task.tokenizer.source.id_to_token, pair.source))
        assert pieces == "".join(f"▁{word}" for word in tree.words)
        assert all(task.tokenizer.source.id_to_token(pair.source[start])[0] == "▁" for start in pair.word_starts)


def test_sentences_that_are_too_long_are_skipped_with_a_note():
    task, _ = prepared(Transformer)
    long = ParsingTask(DATA, task.tokenizer, task.model_config.replace(max_length=20), task.options, TrainConfig(), 0)
    assert len(long.train) < len(TREES)
    assert "skipped" in long.notes[0]


def test_bpe_dropout_requires_subwords():
    table = {
        "task": {"name": "parse", "bpe_dropout": 0.1},
        "data": {"name": "gum", "tokenizer": "word"},
        "model": {"name": "rnn_seq2seq"},
    }
    with pytest.raises(InputError, match="bpe_dropout"):
        Recipe.from_table(table, "recipe")
