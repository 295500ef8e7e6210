"""`qkv convert`: conversion to and from transformers, qkv and ELMo formats."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from qkv.hub import load, save_model
from qkv.hub.families import FAMILIES
from qkv.hub.released import write_released
from qkv.models.bert import Bert, BertConfig
from qkv.models.elmo import Elmo, ElmoConfig
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.tokenizers import CharTokenizer

WEIGHTS = "model.safetensors"
EXTRA_FILES = {
    "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##c\n",
    "tokenizer_config.json": '{"do_lower_case": true}',
    "special_tokens_map.json": '{"cls_token": "[CLS]"}',
    "generation_config.json": "{}",
}


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A transformers folder in bfloat16 with tokenizer and generation files."""
    folder = tmp_path / "bert"
    folder.mkdir()
    torch.manual_seed(0)
    model = Bert(BertConfig(vocab_size=11, dim=8, heads=2, layers=1, ffn_dim=8, max_length=6)).bfloat16()
    write_released(model, FAMILIES["bert"], folder)
    for name, text in EXTRA_FILES.items():
        (folder / name).write_text(text)
    return folder


def same_weights(first: Path, second: Path) -> bool:
    a, b = load_file(first / WEIGHTS), load_file(second / WEIGHTS)
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def test_conversion_is_bit_exact_and_drops_pickles_and_code(qkv, bert, tmp_path):
    (bert / "modeling.py").write_text("print('code')")
    (bert / "pytorch_model.bin").write_bytes(b"a pickle")
    out = tmp_path / "new" / "out"
    done = qkv("convert", bert, out)
    assert (done.code, done.out) == (0, f"{out}\n")
    assert done.err == "Bert  0.0 M parameters  bfloat16  0.0 MB\n"
    assert {path.name for path in out.iterdir()} == {"config.json", WEIGHTS, *EXTRA_FILES}
    assert all((out / name).read_text() == text for name, text in EXTRA_FILES.items())
    assert same_weights(bert, out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_dtype_can_be_chosen(qkv, bert, tmp_path, dtype):
    done = qkv("convert", bert, tmp_path / "out", "--dtype", dtype, "--json")
    summary = json.loads(done.out)
    torch_dtype = getattr(torch, dtype)
    written = load_file(tmp_path / "out" / WEIGHTS)
    assert {tensor.dtype for tensor in written.values()} == {torch_dtype}
    assert all(torch.equal(tensor, load_file(bert / WEIGHTS)[name].to(torch_dtype)) for name, tensor in written.items())
    count = sum(tensor.numel() for tensor in written.values())
    assert summary == {
        "out": str(tmp_path / "out"), "to": "hf", "network": "Bert", "parameters": count, "dtype": dtype,
        "bytes": count * torch_dtype.itemsize,
    }  # fmt: skip


def test_overflow_in_the_target_dtype_is_an_error_and_writes_nothing(qkv, tmp_path):
    model = GPT2(GPT2Config(vocab_size=5, dim=4, heads=1, layers=1, max_length=4))
    with torch.no_grad():
        model.embed.weight[0, 0] = 1e6
    (tmp_path / "in").mkdir()
    write_released(model, FAMILIES["gpt2"], tmp_path / "in")
    error = qkv("convert", tmp_path / "in", tmp_path / "out", "--dtype", "float16").error
    assert error.startswith(f"{tmp_path / 'in' / WEIGHTS}: transformer.wte.weight")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_trained_model_converts_to_transformers_and_back(qkv, tmp_path):
    tokenizer = CharTokenizer.train(["abc"])
    torch.manual_seed(0)
    sizes = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 8, "max_length": 8}
    terms = {"norm": "post", "position": "sinusoidal_halves", "begin_token": 2, "end_token": 3, "pad_token": 0}
    model = Transformer(
        TransformerConfig(source_vocab_size=len(tokenizer), target_vocab_size=len(tokenizer), **sizes, **terms)
    ).eval()
    (tmp_path / "in").mkdir()
    save_model(model, tokenizer, tmp_path / "in")
    assert qkv("convert", tmp_path / "in", tmp_path / "hf").code == 0
    assert qkv("convert", tmp_path / "hf", tmp_path / "out", "--to", "qkv").code == 0
    assert same_weights(tmp_path / "in", tmp_path / "out")
    again = load(tmp_path / "out")
    assert again.tokenizer.to_json() == tokenizer.to_json()
    tokens = torch.tensor([[4, 5, 3]])
    assert torch.equal(again(tokens, tokens), model(tokens, tokens))
    transformers = pytest.importorskip("transformers")
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        assert (theirs(tokens, decoder_input_ids=tokens).logits - model(tokens, tokens)).abs().max() < 1e-5


def test_a_released_tokenizer_survives_conversion_to_qkv_and_back(qkv, bert, tmp_path):
    assert qkv("convert", bert, tmp_path / "own", "--to", "qkv").code == 0
    assert qkv("convert", tmp_path / "own", tmp_path / "hf").code == 0
    assert same_weights(bert, tmp_path / "hf")
    for folder in (bert, tmp_path / "own", tmp_path / "hf"):
        tokenizer = load(folder).tokenizer
        assert tokenizer.encode("A bc", add_special_tokens=True) == [2, 5, 6, 7, 3]
        assert (tokenizer.special_tokens.begin, tokenizer.special_tokens.mask) == (2, 4)
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("A bc")["input_ids"] == [2, 5, 6, 7, 3]


def test_existing_files_are_not_overwritten(qkv, bert, tmp_path):
    before = {path.name: path.read_bytes() for path in bert.iterdir()}
    for out in (bert, bert / WEIGHTS):
        assert qkv("convert", bert, out).error.startswith(f"{out}: ")
    assert {path.name: path.read_bytes() for path in bert.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert qkv("convert", bert, tmp_path / "empty").code == 0
    assert "no such folder" in qkv("convert", tmp_path / "none", tmp_path / "out").error


def test_a_model_without_transformers_counterpart_is_an_error(qkv, tmp_path):
    (tmp_path / "in").mkdir()
    save_model(RNNLM(RNNLMConfig(vocab_size=5, embedding_dim=4, hidden_dim=4)), None, tmp_path / "in")
    error = qkv("convert", tmp_path / "in", tmp_path / "out").error
    assert "RNNLM" in error
    assert qkv("convert", tmp_path / "in", tmp_path / "out", "--to", "qkv").code == 0
    assert same_weights(tmp_path / "in", tmp_path / "out")
    assert "'--to'" in qkv("convert", tmp_path / "in", tmp_path / "other", "--to", "onnx").error


def test_a_pickle_is_not_converted(qkv, bert, tmp_path):
    (bert / WEIGHTS).rename(bert / "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle" in qkv("convert", bert, tmp_path / "out").error


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "marian"])
def test_round_trip_of_every_family_is_bit_exact(qkv, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    small = {
        "bert": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8},
        "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0},
        "vit": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8,
                "image_size": 8, "patch_size": 4, "num_labels": 3},
        "marian": {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                   "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "pad_token_id": 10,
                   "decoder_start_token_id": 10, "max_position_embeddings": 8},
    }[name]  # fmt: skip
    kind = {
        "bert": "BertForPreTraining",
        "gpt2": "GPT2LMHeadModel",
        "vit": "ViTForImageClassification",
        "marian": "MarianMTModel",
    }[name]
    network = getattr(transformers, kind)
    model = network(network.config_class(**({} if name == "vit" else {"vocab_size": 11}), **small)).half()
    model.save_pretrained(tmp_path / "in", max_shard_size="4KB")
    assert qkv("convert", tmp_path / "in", tmp_path / "out").code == 0
    again, report = network.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    before, after = model.state_dict(), again.state_dict()
    assert all(after[key].dtype == value.dtype and torch.equal(after[key], value) for key, value in before.items())


def test_elmo_round_trip(qkv, tmp_path):
    pytest.importorskip("h5py")
    torch.manual_seed(0)
    sizes = {"filters": ((1, 4), (2, 3)), "highway_layers": 1, "dim": 4, "hidden_dim": 6, "layers": 1}
    model = Elmo(ElmoConfig(max_characters=9, **sizes)).eval()
    (tmp_path / "ours").mkdir()
    save_model(model, None, str(tmp_path / "ours"))
    done = qkv("convert", tmp_path / "ours", tmp_path / "released", "--to", "elmo")
    assert done.code == 0
    assert "note: " not in done.err
    (tmp_path / "tagger").mkdir()
    save_model(Elmo(ElmoConfig(max_characters=9, head="tagger", **sizes)), None, tmp_path / "tagger")
    tagger = qkv("convert", tmp_path / "tagger", tmp_path / "headless", "--to", "elmo", "--json")
    weights = sum(weight.numel() for weight in model.parameters())
    assert json.loads(tagger.out)["parameters"] == weights
    assert json.loads(tagger.out)["bytes"] == 4 * weights
    assert "dropped" in tagger.err
    assert {path.name for path in (tmp_path / "released").iterdir()} == {"options.json", "weights.hdf5"}
    assert qkv("convert", tmp_path / "released", tmp_path / "back", "--to", "qkv").code == 0
    back = dict(load(tmp_path / "back").named_parameters())
    assert all(torch.equal(weight, back[name]) for name, weight in model.named_parameters())
    assert "--to elmo" in qkv("convert", tmp_path / "ours", tmp_path / "hf").error
    half = qkv("convert", tmp_path / "ours", tmp_path / "half", "--to", "elmo", "--dtype", "float16").error
    assert "float32" in half


def test_models_that_the_elmo_format_cannot_represent_are_errors(qkv, bert, tmp_path):
    pytest.importorskip("h5py")
    sizes = {"filters": ((1, 4),), "highway_layers": 1, "dim": 4, "hidden_dim": 6, "layers": 1}
    (tmp_path / "ours").mkdir()
    save_model(Elmo(ElmoConfig(max_characters=9, normalize_words=True, **sizes)), None, tmp_path / "ours")
    out = tmp_path / "out"
    assert "normalize_words" in qkv("convert", tmp_path / "ours", out, "--to", "elmo").error
    assert "Bert" in qkv("convert", bert, out, "--to", "elmo").error
    assert not out.exists()


def test_a_quantized_model_is_written_evaluated_and_converted(qkv, tmp_path):
    tokenizer = CharTokenizer.train(["abc"])
    vocab = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer)}
    sizes = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 8, "max_length": 8}
    (tmp_path / "in").mkdir()
    save_model(Transformer(TransformerConfig(**vocab, **sizes)), tokenizer, tmp_path / "in")
    done = qkv("convert", tmp_path / "in", tmp_path / "out", "--dtype", "int8", "--json")
    summary = json.loads(done.out)
    assert (summary["to"], summary["dtype"]) == ("qkv", "int8")
    assert summary["bytes"] == sum(tensor.nbytes for tensor in load_file(tmp_path / "out" / WEIGHTS).values())
    (tmp_path / "pairs.tsv").write_text("ab\tba\nabc\tcba\n")
    assert qkv("evaluate", tmp_path / "out", "--data", tmp_path / "pairs.tsv", "--device", "cpu").code == 0
    assert "--to qkv" in qkv("convert", tmp_path / "in", tmp_path / "more", "--dtype", "int8", "--to", "hf").error
    assert "int8" in qkv("convert", tmp_path / "out", tmp_path / "more", "--dtype", "int8").error
    assert qkv("convert", tmp_path / "out", tmp_path / "float", "--to", "qkv").code == 0
    stored, floats = load_file(tmp_path / "out" / WEIGHTS), load_file(tmp_path / "float" / WEIGHTS)
    for name, weight in floats.items():
        scale = stored.get(f"{name}_scale")
        assert torch.equal(weight, stored[name] if scale is None else stored[name] * scale[:, None])
