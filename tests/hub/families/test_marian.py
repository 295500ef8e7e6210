"""Marian folders as transformers writes them: what it computes, qkv computes, and reads back what qkv writes."""

import json

import pytest
import torch
from torch import nn

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.generation import DecodingConstraints, greedy_search
from qkv.hub import save_model
from qkv.hub.families.marian import FAMILY
from qkv.hub.released import write_released
from qkv.models.transformer import Transformer

transformers = pytest.importorskip("transformers")

PAD, END = 29, 0
SMALL = {"vocab_size": 30, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 64,
         "pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END, "forced_eos_token_id": None,
         "activation_function": "swish", "scale_embedding": True, "attn_implementation": "eager"}  # fmt: skip
APART = {"share_encoder_decoder_embeddings": False, "vocab_size": 33, "decoder_vocab_size": 31}
UNTIED = APART | {"tie_word_embeddings": False}
LIVELY = {"embed_tokens": 3, "shared": 3, ".fc": 4, "encoder_attn.out_proj": 0.2, "self_attn.q_proj": 6, "norm.bias": 0}
ODD = {
    "plain": {},
    "head size 40, one layer": {"d_model": 120, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
                                "encoder_layers": 1, "decoder_layers": 1},
    "three layers and one, relu": {"encoder_layers": 3, "decoder_layers": 1, "activation_function": "relu"},
    "one layer and three, gelu, not scaled": {"encoder_layers": 1, "decoder_layers": 3,
                                              "activation_function": "gelu", "scale_embedding": False},
    "two vocabularies, output tied": APART,
    "two vocabularies, nothing tied": UNTIED | {"activation_function": "gelu_new"},
    "odd width, one head": {"d_model": 15, "encoder_attention_heads": 1, "decoder_attention_heads": 1},
}  # fmt: skip


def theirs(**changes: object):
    """A model of transformers with random weights."""
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**SMALL | changes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and norms begin at 0 and 1, where a mistake could hide
            parameter.data.add_(torch.randn(parameter.shape), alpha=0.2)
        elif parameter.requires_grad:  # which tables of sines and cosines do not
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    nn.init.normal_(model.final_logits_bias, std=0.5)
    return model


def lively(**changes: object):
    """A model that does not say one token over and over again, as random ones do."""
    model = theirs(**changes | {"vocab_size": 300, "decoder_vocab_size": 300, "d_model": 48})
    for name, weight in model.named_parameters():
        for part, factor in LIVELY.items():
            if part in name and weight.requires_grad:
                weight.data.mul_(factor)
    nn.init.zeros_(model.final_logits_bias)
    return model


def batch(lengths: tuple[int, ...] = (7, 4, 1)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(1, PAD, (len(lengths), max(lengths)), generator=generator)
    target = torch.randint(1, PAD, (len(lengths), 5), generator=generator)
    target[:, 0] = PAD  # with which a Marian decoder begins
    length = torch.tensor(lengths)
    return source.masked_fill(torch.arange(max(lengths)) >= length[:, None], PAD), target, length


def seen_by(source: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (torch.arange(source.shape[1]) < lengths[:, None]).long()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_logits_hidden_states_and_attention_equal_transformers(tmp_path, changes):
    model = theirs(**changes)
    model.save_pretrained(tmp_path)
    source, target, lengths = batch()
    expected = model(
        input_ids=source, attention_mask=seen_by(source, lengths), decoder_input_ids=target,
        output_hidden_states=True, output_attentions=True, use_cache=False,
    )  # fmt: skip
    ours = qkv.load(tmp_path)
    encoded, decoded = [], []
    for states, stack in ((encoded, ours.encoder), (decoded, ours.decoder)):
        for block in stack:
            block.register_forward_hook(lambda block, _, out, states=states: states.append(out))
    with qkv.watch(ours) as seen:
        close(ours(source, target, lengths), expected.logits)
    for state, known in zip(encoded, expected.encoder_hidden_states[1:], strict=True):
        for row, length in enumerate(lengths):
            close(state[row, :length], known[row, :length])
    for state, known in zip(decoded, expected.decoder_hidden_states[1:], strict=True):
        close(state, known)
    shown = {f"encoder.{number}": weights for number, weights in enumerate(expected.encoder_attentions)}
    shown |= {f"decoder.{number}.self": weights for number, weights in enumerate(expected.decoder_attentions)}
    shown |= {f"decoder.{number}.cross": weights for number, weights in enumerate(expected.cross_attentions)}
    assert set(seen) == set(shown)
    for layer, weights in shown.items():
        close(seen[layer].weights, weights)


@torch.no_grad()
def test_position_embeddings_equal_transformers(tmp_path):
    for dim, heads in ((24, 2), (15, 1)):
        model = theirs(d_model=dim, encoder_attention_heads=heads, decoder_attention_heads=heads)
        model.save_pretrained(tmp_path)
        table = model.model.encoder.embed_positions.weight
        assert qkv.load(tmp_path).source_embed.positions(64).equal(table)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, UNTIED], ids=["tied", "untied"])
def test_fifty_greedy_tokens_equal_generate(tmp_path, changes):
    model = lively(**changes)
    model.final_logits_bias[0, END] = -1e4  # so that no sentence ends before
    model.save_pretrained(tmp_path)
    source, _, lengths = batch((7, 4, 1, 9, 2, 5, 3, 8, 6, 9, 7, 1))
    expected = model.generate(
        input_ids=source, attention_mask=seen_by(source, lengths), num_beams=1, do_sample=False,
        max_new_tokens=50, min_new_tokens=50,
    )  # fmt: skip
    ours = qkv.load(tmp_path)
    rules = DecodingConstraints(batch=12, begin=ours.config.begin_token, end=None, max_new_tokens=50)
    found = greedy_search(ours, ours.init_state(ours.encode(source, lengths)), rules)
    assert expected.shape == (12, 51)  # with the token it begins with
    assert [list(one.tokens) for one in found] == expected[:, 1:].tolist()
    assert len({token for one in found for token in one.tokens}) > 20


@torch.no_grad()
def test_search_stops_like_generate(tmp_path):
    model = lively(**UNTIED)
    model.final_logits_bias[0, END] = 3.0
    model.save_pretrained(tmp_path)
    source, _, lengths = batch((7, 4, 1, 9, 2, 5, 3, 8, 6))
    ours = qkv.load(tmp_path)
    rules = DecodingConstraints(
        batch=9, begin=PAD, end=ours.config.end_token, max_new_tokens=20, suppress_tokens=(ours.config.pad_token,)
    )
    found = greedy_search(ours, ours.init_state(ours.encode(source, lengths)), rules)
    expected = model.generate(
        input_ids=source, attention_mask=seen_by(source, lengths), num_beams=1, do_sample=False,
        max_new_tokens=20, suppress_tokens=[PAD],
    )[:, 1:].tolist()  # fmt: skip
    whole = [written[: written.index(END)] if END in written else written for written in expected]
    assert [list(one.tokens) for one in found] == whole
    assert len({*map(len, whole)}) > 1


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_read_exactly(tmp_path, dtype):
    model = theirs().to(dtype)
    model.save_pretrained(tmp_path)
    source, target, lengths = batch()
    model = transformers.MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32)
    expected = model(input_ids=source, attention_mask=seen_by(source, lengths), decoder_input_ids=target).logits
    close(qkv.load(tmp_path)(source, target, lengths), expected)
    assert qkv.load(tmp_path, dtype=dtype)(source, target, lengths).dtype == dtype


@torch.no_grad()
@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_round_trip_is_bit_exact_and_loads_in_transformers(tmp_path, changes):
    model = theirs(**changes)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    model.save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    write_released(ours, FAMILY, tmp_path / "ours")
    again = qkv.load(tmp_path / "ours")
    assert again.config == ours.config
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert one.equal(other)
    back, report = transformers.MarianMTModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    for name, weight in model.state_dict().items():
        assert back.state_dict()[name].equal(weight), name
    for key in ("decoder_start_token_id", "pad_token_id", "eos_token_id", "scale_embedding"):
        assert getattr(back.config, key) == getattr(model.config, key)
    source, target, lengths = batch()
    given = {"input_ids": source, "attention_mask": seen_by(source, lengths), "decoder_input_ids": target}
    close(back.eval()(**given).logits, model(**given).logits)


@torch.no_grad()
def test_a_released_model_can_be_saved_in_qkv_format(tmp_path):
    theirs(**APART).save_pretrained(tmp_path / "theirs")
    ours = qkv.load(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    save_model(ours, None, tmp_path / "ours")
    again = qkv.load(tmp_path / "ours")
    assert again.config == ours.config
    assert again(*batch()).equal(ours(*batch()))


def rewrite(folder, change) -> None:
    """Save a folder's tensors after applying `change`."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@torch.no_grad()
def test_files_with_tied_duplicates_or_without_bias_are_read(tmp_path):
    model = theirs()
    model.save_pretrained(tmp_path)
    source, target, lengths = batch()
    expected = qkv.load(tmp_path)(source, target, lengths)
    names = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
             "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")  # fmt: skip

    def spell_out(tensors):
        tensors.update({name: model.state_dict()[name].clone() for name in names})

    rewrite(tmp_path, spell_out)
    assert qkv.load(tmp_path)(source, target, lengths).equal(expected)

    rewrite(tmp_path, lambda tensors: tensors.pop("model.shared.weight"))
    assert qkv.load(tmp_path)(source, target, lengths).equal(expected)

    rewrite(tmp_path, lambda tensors: tensors.pop("final_logits_bias"))
    found = qkv.load(tmp_path)(source, target, lengths)
    close(found, expected - model.final_logits_bias)

    rewrite(tmp_path, lambda tensors: tensors["lm_head.weight"].add_(1.0))
    with pytest.raises(CheckpointError, match="must equal"):
        qkv.load(tmp_path)


@torch.no_grad()
def test_a_base_model_without_prefix_is_read(tmp_path):
    model = theirs()
    nn.init.zeros_(model.final_logits_bias)
    model.model.save_pretrained(tmp_path)
    source, target, lengths = batch()
    expected = model(input_ids=source, attention_mask=seen_by(source, lengths), decoder_input_ids=target).logits
    close(qkv.load(tmp_path)(source, target, lengths), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalize_before": True}, "normalize_before = True"),
        ({"normalize_embedding": True}, "normalize_embedding = True"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm = True"),
        ({"static_position_embeddings": False}, "static_position_embeddings = False"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = False"),
        ({"activation_function": "mish"}, "unknown activation 'mish'"),
        ({"decoder_ffn_dim": 40}, "encoder_ffn_dim 20"),
        ({"decoder_attention_heads": 4}, "encoder_attention_heads 2"),
        ({"tie_word_embeddings": False}, "without tie_word_embeddings"),
        ({"decoder_vocab_size": 31}, "30 and 31"),
        ({"decoder_start_token_id": 30}, "begin_token 30"),
        ({"eos_token_id": [0, 1]}, "eos_token_id must be an integer"),
        ({"encoder_layers": 10**6}, "layers"),
        ({"d_model": 10**12}, "dim must"),
        ({"vocab_size": 10**12, "decoder_vocab_size": 10**12}, "source_vocab_size must"),
        ({"encoder_layers": 1}, "not part of the model"),
        ({"share_encoder_decoder_embeddings": False}, "model.encoder.embed_tokens.weight"),
    ],
)
def test_unsupported_configs_are_errors(tmp_path, changes, words):
    theirs().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words):
        qkv.load(tmp_path)


@pytest.mark.parametrize("changes", [{"norm": "pre"}, {"position": "rotary"}, {"score": "dot"}, {"begin_token": None}])
def test_a_model_without_transformers_counterpart_is_not_written(tmp_path, changes):
    theirs().save_pretrained(tmp_path)
    config = qkv.load(tmp_path).config.replace(**changes)
    with pytest.raises(InputError, match="transformers' marian"):
        write_released(Transformer(config), FAMILY, tmp_path)
