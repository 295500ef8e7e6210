"""Text generation: continuations of a prompt, determined by the seed."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from qkv.errors import ConfigError, InputError
from qkv.generation import GenerationConfig, Sampling
from qkv.generation.sampling import MAX_TOKENS
from qkv.hub import save_model
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.pipelines.generator import Generator
from qkv.tokenizers import BPETokenizer, CharTokenizer
from qkv.tokenizers.library import PretrainedTokenizer
from qkv.tokenizers.trained import SPECIAL
from tests.generation.kernels import require_kernels

TEXT = "to be, or not to be "
TOKENIZER = CharTokenizer.train([TEXT])


@pytest.fixture(scope="module")
def trained() -> RNNLM:
    """A model that has memorised one line."""
    torch.manual_seed(0)
    model = RNNLM(RNNLMConfig(vocab_size=len(TOKENIZER), layers=1, embedding_dim=12, hidden_dim=32, dropout=0.0))
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
    return RNNLM(RNNLMConfig(vocab_size=len(TOKENIZER), hidden_dim=16)).eval()


def test_a_trained_model_continues_its_text(trained):
    answer = Generator(trained, TOKENIZER)("to be, or", max_new_tokens=11, temperature=0.0)
    assert answer.continuation == " not to be "
    assert answer.text == "to be, or not to be "
    assert -0.5 < answer.score < 0.0


def test_score_is_the_mean_log_probability_of_generated_tokens(random_model):
    answer = Generator(random_model, TOKENIZER)("be", max_new_tokens=7)
    ids = TOKENIZER.encode(answer.text)
    with torch.no_grad():
        log_p = random_model(torch.tensor([ids]))[0].log_softmax(-1)
    token_log_p = [log_p[position - 1, ids[position]].item() for position in range(2, 9)]
    assert answer.score == pytest.approx(sum(token_log_p) / 7, abs=1e-5)


def test_samples_depend_on_the_seed(random_model):
    generator = Generator(random_model, TOKENIZER)
    first, same, different = (generator("be", max_new_tokens=30, seed=seed).text for seed in (1, 1, 2))
    assert first == same != different
    assert len(first) == 32


def test_samples_do_not_depend_on_the_batch(random_model):
    generator = Generator(random_model, TOKENIZER)
    (few,) = generator(["be"], max_new_tokens=20, num_return_sequences=2)
    many, _ = generator(["be", "or"], max_new_tokens=20, num_return_sequences=5)
    assert [sample.text for sample in few] == [sample.text for sample in many[:2]]
    assert len({sample.text for sample in many}) == 5


@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_prompts_of_any_length_are_batched_in_order(random_model, batch_size):
    generator, prompts = Generator(random_model, TOKENIZER), ["be", "to", "or not", "n", "not be"]
    together = generator(prompts, max_new_tokens=12, seed=3, batch_size=batch_size)
    assert [answer.prompt for answer in together] == prompts
    assert [answer.text for answer in together] == [
        answer.text for answer in generator(prompts, max_new_tokens=12, seed=3, batch_size=1)
    ]
    assert len({answer.continuation for answer in together}) > 1


def test_a_temperature_of_0_is_greedy_and_depends_on_no_seed(random_model):
    generator = Generator(random_model, TOKENIZER)
    first = generator("be", max_new_tokens=20, temperature=0.0).text
    assert first == generator("be", max_new_tokens=20, temperature=0.0, seed=9).text
    assert first == generator("be", max_new_tokens=20, top_k=1).text


@pytest.mark.parametrize("options", [{"seed": 5}, {"temperature": 0.0}, {"top_p": 0.5}])
def test_streamed_pieces_concatenate_to_the_continuation(random_model, options):
    generator = Generator(random_model, TOKENIZER)
    pieces = [*generator.stream("to be", max_new_tokens=15, **options)]
    assert len(pieces) == 15
    assert "".join(pieces) == generator("to be", max_new_tokens=15, **options).continuation


def test_a_streamed_piece_is_never_a_part_of_a_character():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PretrainedTokenizer(backend)
    torch.manual_seed(0)
    model = RNNLM(RNNLMConfig(vocab_size=len(tokenizer), layers=1, embedding_dim=12, hidden_dim=32, dropout=0.0))
    text = torch.tensor([tokenizer.encode("äöü" * 8)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(text[:, :-1]).transpose(1, 2), text[:, 1:]).backward()
        optimizer.step()
    pieces = [*Generator(model, tokenizer).stream("äö", max_new_tokens=6, temperature=0.0)]
    assert pieces == ["ü", "ä", "ö"]


def test_a_prompt_of_one_token_is_enough(random_model):
    generator = Generator(random_model, TOKENIZER)
    assert len(generator("t", max_new_tokens=3).continuation) == 3


def test_special_tokens_are_never_generated(random_model):
    with torch.no_grad():
        random_model.readout.bias[: len(SPECIAL)] += 50.0
    try:
        assert "<" not in Generator(random_model, TOKENIZER)("be", max_new_tokens=20).text
    finally:
        with torch.no_grad():
            random_model.readout.bias[: len(SPECIAL)] -= 50.0


def test_unused_outputs_are_never_generated():
    torch.manual_seed(0)
    model = RNNLM(RNNLMConfig(vocab_size=len(TOKENIZER) + 7, hidden_dim=8))
    with torch.no_grad():
        model.readout.bias[len(TOKENIZER) :] += 50.0
    assert len(Generator(model, TOKENIZER)("be", max_new_tokens=20).continuation) == 20


def test_subwords_are_decoded_together_with_the_prompt():
    tokenizer = BPETokenizer.train([TEXT * 20], vocab_size=30)
    torch.manual_seed(0)
    answer = Generator(RNNLM(RNNLMConfig(vocab_size=len(tokenizer), hidden_dim=8)), tokenizer)(
        "to be", max_new_tokens=10
    )
    ids = tokenizer.encode("to be")
    assert answer.text.startswith("to be")
    assert tokenizer.encode(answer.text)[: len(ids) - 1] == ids[:-1]
    assert len(answer.continuation) >= 10


def test_unknown_characters_are_reported(random_model):
    answer = Generator(random_model, TOKENIZER)("to bé", max_new_tokens=2)
    assert answer.unknown == ("é",)
    assert answer.text.startswith("to bé")
    assert len(answer.continuation) == 2


def test_a_saved_model_generates_like_the_one_in_memory(random_model, tmp_path: Path, monkeypatch):
    save_model(random_model, TOKENIZER, tmp_path)
    generator = Generator(tmp_path, device="cpu")
    assert generator("be", max_new_tokens=20).text == Generator(random_model, TOKENIZER)("be", max_new_tokens=20).text


def test_invalid_inputs_are_errors(random_model, tmp_path):
    generator = Generator(random_model, TOKENIZER)
    with pytest.raises(InputError, match="prompt 2 is empty"):
        generator(["be", ""])
    for option in ("max_new_tokens", "num_return_sequences", "top_k", "batch_size"):
        with pytest.raises(InputError, match=f"{option} must be"):
            generator("be", **{option: 0})
    with pytest.raises(InputError, match="exceed the limit"):
        generator("be", max_new_tokens=MAX_TOKENS, num_return_sequences=2)
    with pytest.raises(InputError, match="RNNLM: no tokenizer"):
        Generator(random_model)
    with pytest.raises(InputError, match="none: no such folder"):
        Generator(tmp_path / "none")


def test_the_context_of_a_model_bounds_prompt_and_continuation():
    config = GPT2Config(vocab_size=len(TOKENIZER), dim=8, heads=2, layers=1, ffn_dim=8, max_length=8)
    generator = Generator(GPT2(config), TOKENIZER)
    assert len(generator("to be", max_new_tokens=4).continuation) == 4
    with pytest.raises(InputError, match=r"prompt 2 .* must be at most 2"):
        generator(["to", "to be, "], max_new_tokens=4)


@pytest.mark.parametrize("kind", ["rnn_lm", "gpt2"])
def test_samples_of_a_part_of_the_prompts_with_their_row_ids(random_model, kind):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(TOKENIZER), dim=16, heads=2, layers=1, max_length=40)
    generator = Generator(random_model if kind == "rnn_lm" else GPT2(config), TOKENIZER)
    prompts = ["be", "to", "or not", "be"]
    options = GenerationConfig(max_new_tokens=9, sampling=Sampling(seed=2))
    together = dict(generator.stream_results(prompts, options))
    part = dict(generator.stream_results(prompts[2:], options, row_ids=[2, 3]))
    assert {index + 2: [sample.text for sample in samples] for index, samples in part.items()} == {
        index: [sample.text for sample in together[index]] for index in (2, 3)
    }
    assert together[0][0].text != together[3][0].text
    assert together[0][0].new_tokens == 9
    with pytest.raises(ConfigError, match="row_ids"):
        dict(generator.stream_results(prompts, options, row_ids=[1]))


def test_a_check_names_the_number_of_a_prompt(random_model):
    generator = Generator(random_model, TOKENIZER)
    generator.check(["be"], first=7)
    with pytest.raises(InputError, match="prompt 8 "):
        generator.check(["be", ""], first=7)


def test_speculative_decoding_gives_the_same_texts():
    require_kernels()
    torch.manual_seed(0)
    sizes = {"vocab_size": len(TOKENIZER), "dim": 32, "heads": 2, "max_length": 64}
    model, small = (GPT2(GPT2Config(layers=layers, **sizes)).eval() for layers in (2, 1))
    plain = Generator(model, TOKENIZER)
    for options in ({"prompt_lookup": True}, {"assistant_model": small}, {"assistant_model": model}):
        fast = Generator(model, TOKENIZER, **options)
        for temperature in (0.0, 1.0):
            settings = {"max_new_tokens": 20, "temperature": temperature}
            assert fast(["to be", "or not"], **settings) == plain(["to be", "or not"], **settings)
            assert "".join(fast.stream("to be", **settings)) == plain("to be", **settings).continuation
    for options in ({"prompt_lookup": True, "assistant_model": small}, {"assistant_model": random_rnn()}):
        with pytest.raises(InputError):
            Generator(model, TOKENIZER, **options)
    with pytest.raises(InputError):
        Generator(random_rnn(), TOKENIZER, prompt_lookup=True)


def random_rnn() -> RNNLM:
    return RNNLM(RNNLMConfig(vocab_size=len(TOKENIZER), hidden_dim=16)).eval()
