"""Text generation: continuations of a prompt, determined by the seed."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.generation import Sampling
from qkv.hub import save_model
from qkv.models.rnn_lm import RNNLM, Config
from qkv.pipelines.generator import MAX_TOKENS, Generator
from qkv.tokenizers import BPETokenizer, CharTokenizer
from qkv.tokenizers.trained import SPECIAL

TEXT = "to be, or not to be "
TOKENIZER = CharTokenizer.train([TEXT])
GREEDY = Sampling(top_k=1)


@pytest.fixture(scope="module")
def trained() -> RNNLM:
    """A model that has memorised one line."""
    torch.manual_seed(0)
    model = RNNLM(Config(len(TOKENIZER), layers=1, embedding=12, hidden=32, dropout=0.0))
    tokens = torch.tensor(TOKENIZER.encode([TEXT * 2]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(80):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3
    return model.eval()


@pytest.fixture(scope="module")
def random_model() -> RNNLM:
    torch.manual_seed(4)
    return RNNLM(Config(len(TOKENIZER), hidden=16)).eval()


def test_a_trained_model_continues_its_text(trained):
    answer = Generator(trained, TOKENIZER)("to be, or", tokens=11, top_k=1)
    assert answer.continuation == " not to be "
    assert answer.text == "to be, or not to be "
    assert -0.5 < answer.score < 0.0


def test_score_is_the_mean_log_probability_of_generated_tokens(random_model):
    answer = Generator(random_model, TOKENIZER)("be", tokens=7)
    ids = TOKENIZER.encode(answer.text)
    with torch.no_grad():
        log_p = random_model(torch.tensor([ids]))[0].log_softmax(-1)
    token_log_p = [log_p[position - 1, ids[position]].item() for position in range(2, 9)]
    assert answer.score == pytest.approx(sum(token_log_p) / 7, abs=1e-5)


def test_samples_depend_on_the_seed(random_model):
    generator = Generator(random_model, TOKENIZER)
    first, same, different = (generator("be", tokens=30, seed=seed).text for seed in (1, 1, 2))
    assert first == same != different
    assert len(first) == 32


def test_samples_do_not_depend_on_the_batch(random_model):
    generator = Generator(random_model, TOKENIZER)
    (few,) = generator.generate(["be"], 20, samples=2)
    many, _ = generator.generate(["be", "or"], 20, samples=5)
    assert [sample.text for sample in few] == [sample.text for sample in many[:2]]
    assert len({sample.text for sample in many}) == 5


def test_a_prompt_of_one_token_is_enough(random_model):
    generator = Generator(random_model, TOKENIZER)
    assert len(generator("t", tokens=3).continuation) == 3


def test_special_tokens_are_never_generated(random_model):
    with torch.no_grad():
        random_model.readout.bias[: len(SPECIAL)] += 50.0
    try:
        assert "<" not in Generator(random_model, TOKENIZER)("be", tokens=20).text
    finally:
        with torch.no_grad():
            random_model.readout.bias[: len(SPECIAL)] -= 50.0


def test_unused_outputs_are_never_generated():
    torch.manual_seed(0)
    model = RNNLM(Config(len(TOKENIZER) + 7, hidden=8))
    with torch.no_grad():
        model.readout.bias[len(TOKENIZER) :] += 50.0
    assert len(Generator(model, TOKENIZER)("be", tokens=20).continuation) == 20


def test_subwords_are_decoded_together_with_the_prompt():
    tokenizer = BPETokenizer.train([TEXT * 20], vocab_size=30)
    torch.manual_seed(0)
    answer = Generator(RNNLM(Config(len(tokenizer), hidden=8)), tokenizer)("to be", tokens=10)
    ids = tokenizer.encode("to be")
    assert answer.text.startswith("to be")
    assert tokenizer.encode(answer.text)[: len(ids) - 1] == ids[:-1]
    assert len(answer.continuation) >= 10


def test_unknown_characters_are_reported(random_model):
    answer = Generator(random_model, TOKENIZER)("to bé", tokens=2)
    assert answer.unknown == ("é",)
    assert answer.text.startswith("to bé")
    assert len(answer.continuation) == 2


def test_a_saved_model_generates_like_the_one_in_memory(random_model, tmp_path: Path, monkeypatch):
    save_model(random_model, TOKENIZER, tmp_path)
    generator = Generator(tmp_path, device="cpu")
    assert generator("be", tokens=20).text == Generator(random_model, TOKENIZER)("be", tokens=20).text


def test_invalid_inputs_are_errors(random_model, tmp_path):
    generator = Generator(random_model, TOKENIZER)
    with pytest.raises(InputError, match="prompt 2 is empty"):
        list(generator.generate(["be", ""], 3))
    with pytest.raises(InputError, match="tokens must be at least 1"):
        generator("be", tokens=0)
    with pytest.raises(InputError, match="samples must be at least 1"):
        list(generator.generate(["be"], 3, samples=0))
    with pytest.raises(InputError, match="exceed the limit"):
        list(generator.generate(["be"], MAX_TOKENS, samples=2))
    with pytest.raises(InputError, match="RNNLM: no vocabulary"):
        Generator(random_model)
    with pytest.raises(InputError, match="none: no such folder"):
        Generator(tmp_path / "none")
