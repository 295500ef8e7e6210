"""Which words of an answer were copied: tokens, words and brackets, against the model's own probabilities."""

import numpy as np
import pytest
import torch

from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq
from qkv.models.transformer import Transformer
from qkv.pipelines.output import Answer, AttentionMap
from qkv.pipelines.translator import Translator
from qkv.tokenizers import BPETokenizer

TEXTS = ["Ann: hello Bob | Bob: bye", "Cy: hello Ann"]


def make(cls, gate: float | None = None, **options: object) -> Translator:
    tokenizer = BPETokenizer.train(TEXTS * 3, vocab_size=40)
    torch.manual_seed(1)
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer), "max_length": 40}
    model = cls(cls.config_class(**sizes, **options))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    if gate is not None:
        torch.nn.init.zeros_(model.copying.gate.weight)
        torch.nn.init.constant_(model.copying.gate.bias, gate)
    return Translator(model.eval(), tokenizer)


LIMIT = GenerationConfig(max_new_tokens=6, min_new_tokens=3)
RNN = {"embedding_dim": 6, "hidden_dim": 8, "coverage": True, "copying": True}
TRANSFORMER = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 8, "copying": True}
every_model = pytest.mark.parametrize(
    ("cls", "options"), [(RNNSeq2Seq, RNN), (Transformer, TRANSFORMER)], ids=["rnn", "transformer"]
)


def probabilities(translator: Translator, source: list[int], target: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return translator.model(torch.tensor([source]), torch.tensor([target])).exp()[0]


@every_model
def test_probabilities_of_copies_equal_those_of_the_equation(cls, options):
    translator = make(cls, **options)
    source = translator.tokenizer.source.encode([TEXTS[0]])[0]
    (hypothesis,) = next(translator._decode(translator.encode({1: TEXTS[0]}), LIMIT, "", [0], None))[0][1]
    (maps,) = translator.attention([(translator.encode({1: TEXTS[0]})[0], hypothesis)])
    target = [translator.special_tokens.begin, *hypothesis.tokens]
    p = probabilities(translator, source, target)
    gate = translator.model.copying.gate
    torch.nn.init.zeros_(gate.weight)
    torch.nn.init.constant_(gate.bias, 50.0)  # only generates
    generated = probabilities(translator, source, target)
    outside = next(token for token in range(4, p.shape[1]) if token not in source)
    for t, token in enumerate(hypothesis.tokens):
        p_gen = p[t, outside] / generated[t, outside]
        expected = 1 - p_gen * generated[t, token] / p[t, token]
        assert maps[0].copied[t] == pytest.approx(expected.item(), abs=1e-4)


@every_model
def test_a_model_that_only_copies_marks_every_word(cls, options):
    translator = make(cls, gate=-40.0, **options)
    for text in TEXTS:
        answer = translator(text, max_new_tokens=5, min_new_tokens=2)
        words = answer.text.split()
        assert words
        assert set(answer.text.replace(" ", "")) <= set(text)
        np.testing.assert_allclose(answer.words().copied, 1.0, atol=1e-5)
        assert answer.mark_copied() == " ".join(f"[{word}]" for word in words)


@every_model
def test_a_model_that_only_generates_marks_no_word(cls, options):
    answer = make(cls, gate=40.0, **options)(TEXTS[0], max_new_tokens=5, min_new_tokens=2)
    assert answer.mark_copied() == " ".join(answer.text.split())


def test_the_probability_of_a_word_is_the_mean_of_its_tokens():
    tokens = AttentionMap(
        "decoder", ("An", "n", " says"), ("Ann", ":"), np.ones((1, 3, 2)) / 2, np.array([1.0, 0.5, 0.1])
    )
    answer = Answer("Ann:", "Ann says", 0.0, (tokens,))
    np.testing.assert_allclose(answer.words().copied, [0.75, 0.1])
    assert answer.mark_copied() == "[Ann] says"
    assert answer.mark_copied(0.8) == "Ann says"


def test_models_without_copying_have_no_probabilities():
    translator = make(RNNSeq2Seq, **RNN | {"copying": False})
    answer = translator(TEXTS[0], max_new_tokens=4)
    assert answer.attention[0].copied is None
    assert answer.words().copied is None
    with pytest.raises(InputError, match="copying"):
        answer.mark_copied()
    with pytest.raises(InputError, match="copying"):
        translator.check_copying()
