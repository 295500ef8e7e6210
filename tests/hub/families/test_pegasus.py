"""Pegasus folders: what transformers computes, qkv computes, and it loads the Transformers that qkv trains."""

import pytest
import torch
from torch import nn

import qkv
from qkv.errors import CheckpointError, InputError
from qkv.hub import convert, save_model
from qkv.hub.families.pegasus import FAMILY
from qkv.hub.feature_order import with_sines_first
from qkv.hub.released import write_released
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import BPETokenizer, CharTokenizer

transformers = pytest.importorskip("transformers")

PAD, END = 0, 1
SMALL = {"vocab_size": 30, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 64,
         "activation_function": "relu", "scale_embedding": True}  # fmt: skip
TEXTS = ["Where is the station?", "The station is here, on the left.", "I don't know.", "Is it far from here?"]


def theirs(**changes: object):
    """A model of transformers with random weights."""
    torch.manual_seed(0)
    model = transformers.PegasusForConditionalGeneration(transformers.PegasusConfig(**SMALL | changes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and norms begin at 0 and 1, where a mistake could hide
            parameter.data.add_(torch.randn(parameter.shape), alpha=0.2)
        elif parameter.requires_grad:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    nn.init.normal_(model.final_logits_bias, std=0.5)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(2, 30, (3, 7), generator=generator)
    target = torch.randint(2, 30, (3, 5), generator=generator)
    lengths = torch.tensor((7, 4, 1))
    return source.masked_fill(torch.arange(7) >= lengths[:, None], PAD), target, lengths


def trained(folder, tokenizer, steps=0, **changes):
    """A saved Transformer of qkv, trained for some steps to answer each of TEXTS with the next one."""
    torch.manual_seed(3)
    sizes = {"dim": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "ffn_dim": 48, "max_length": 40}
    vocab = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer)}
    model = Transformer(TransformerConfig(**sizes | vocab | {"position": "sinusoidal_halves"} | changes))
    ids = [torch.tensor(row) for row in tokenizer.encode(TEXTS)]
    source = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    target = nn.utils.rnn.pad_sequence(
        [torch.cat((torch.tensor([2]), row, torch.tensor([3]))) for row in ids[1:] + ids[:1]], True
    )
    lengths = torch.tensor([len(row) for row in ids])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(steps):
        logits = model(source, target[:, :-1], lengths)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder.mkdir()
    save_model(model.eval(), tokenizer, folder)


@torch.no_grad()
@pytest.mark.parametrize(
    "changes", [{}, {"scale_embedding": False, "activation_function": "gelu", "encoder_layers": 3, "d_model": 18}]
)
def test_logits_equal_transformers_and_the_round_trip_is_bit_exact(tmp_path, changes):
    model = theirs(**changes)
    model.save_pretrained(tmp_path / "theirs")
    source, target, lengths = batch()
    mask = (torch.arange(7) < lengths[:, None]).long()
    expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    ours = qkv.load(tmp_path / "theirs")
    torch.testing.assert_close(ours(source, target, lengths), expected, rtol=0, atol=1e-5)
    (tmp_path / "ours").mkdir()
    write_released(ours, FAMILY, tmp_path / "ours")
    assert qkv.load(tmp_path / "ours").config == ours.config
    back, report = transformers.PegasusForConditionalGeneration.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values())
    for name, weight in model.state_dict().items():
        assert back.state_dict()[name].equal(weight), name


@pytest.mark.parametrize("tokenizer_class", [BPETokenizer, CharTokenizer])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("position", ["sinusoidal", "sinusoidal_halves"])
def test_a_trained_translator_answers_the_same_in_transformers(tmp_path, tokenizer_class, dtype, position):
    tokenizer = tokenizer_class.train(TEXTS)
    trained(tmp_path / "own", tokenizer, steps=60, position=position)
    folder = tmp_path / "own"
    if dtype == torch.int8:
        folder = tmp_path / "int8"
        convert(tmp_path / "own", folder, dtype=torch.int8)
    convert(folder, tmp_path / "hf")
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values())
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [*TEXTS, "Here is a ß and a far <s>"[:22]]
    inputs = their_tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    for row, mask, text in zip(inputs["input_ids"], inputs["attention_mask"], texts, strict=True):
        assert row[mask.bool()].tolist() == tokenizer.encode(text)
    outputs = model.generate(**inputs, num_beams=1, do_sample=False, max_length=21)
    expected = their_tokenizer.batch_decode(outputs, skip_special_tokens=True)
    translator = qkv.Translator(qkv.load(folder, dequantize=True), device="cpu")
    answers = [answer.text for answer in translator(texts, max_new_tokens=20)]
    assert answers == expected
    assert len(set(answers[:4])) == 4  # the source matters
    again = [answer.text for answer in qkv.Translator(tmp_path / "hf", device="cpu")(texts, max_new_tokens=20)]
    assert again == answers


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("dim", [32, 18])
def test_reordered_features_give_the_same_logits(tmp_path, norm, dim):
    trained(tmp_path / "own", CharTokenizer.train(TEXTS), position="sinusoidal", norm=norm, dim=dim, output_bias=True)
    model = qkv.load(tmp_path / "own").double()
    for parameter in model.parameters():  # biases and norms begin at 0 and 1, where a mistake could hide
        parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    reordered = with_sines_first(model)
    assert reordered.config.position.name == "sinusoidal_halves"
    source, target = torch.randint(4, 20, (2, 3, 6))
    lengths = torch.tensor([6, 4, 1])
    expected = model(source, target, lengths)
    torch.testing.assert_close(reordered(source, target, lengths), expected, rtol=0, atol=1e-6)  # float32 sines
    family = "PegasusForConditionalGeneration" if norm == "pre" else "MarianMTModel"
    convert(tmp_path / "own", tmp_path / "hf")
    theirs = getattr(transformers, family).from_pretrained(tmp_path / "hf").eval()
    close = theirs(source, decoder_input_ids=target, attention_mask=torch.ones_like(source)).logits
    torch.testing.assert_close(close, qkv.load(tmp_path / "own")(source, target), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"position": "rotary"}, "rotary"), ({"tie_embeddings": False}, "tie_embeddings"), ({"copying": True}, "copying"),
     ({"norm": "none"}, "norm"), ({"score": "dot"}, "score")],
)  # fmt: skip
def test_a_model_without_counterpart_is_an_error(tmp_path, changes, word):
    trained(tmp_path / "own", CharTokenizer.train(TEXTS), **changes)
    with pytest.raises(InputError, match=word):
        convert(tmp_path / "own", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_config_with_unequal_sides_is_an_error(tmp_path):
    theirs(decoder_ffn_dim=21).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="decoder_ffn_dim"):
        qkv.load(tmp_path)
