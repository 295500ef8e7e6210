"""Released model folders with their tokenizers: outputs equal transformers."""

import io
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

import qkv
from qkv.datasets.dataset import TextDataset
from qkv.errors import InputError
from qkv.models.gpt2 import GPT2Config
from qkv.models.transformer import TransformerConfig
from qkv.registry import lookup
from qkv.tasks.language_modeling import LanguageModelingTask
from qkv.tasks.translation import TranslationTask
from qkv.training import job
from qkv.training.finetune import load_pretrained
from qkv.training.recipe import read_recipe

transformers = pytest.importorskip("transformers")

PROSE = [
    "A man in a blue shirt rides a bicycle.", "Two dogs play in the snow near a house.", "The cat sat on the mat.",
    "Ein Mann fährt Fahrrad.", "Zwei Hunde spielen im Schnee.", "Die Katze saß auf der Matte.",
]  # fmt: skip


def randomise(model: nn.Module) -> nn.Module:
    """Random weights large enough to give varied outputs."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter.requires_grad:
            large = 3.0 if "embed" in name or "wte" in name or "shared" in name else 1.0
            nn.init.normal_(parameter, std=large * parameter.shape[-1] ** -0.5)
    return model.eval()


@pytest.fixture
def gpt2(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        PROSE, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    )
    config = transformers.GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    randomise(transformers.GPT2LMHeadModel(config)).save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_released_language_model_generates_like_transformers(gpt2: Path):
    theirs = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(gpt2 / "tokenizer.json"))
    generator = qkv.Generator(gpt2)
    for prompt in PROSE[:3]:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        expected = theirs.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0]
        generated = generator(prompt, max_new_tokens=20, temperature=0)
        assert generated.text == tokenizer.decode(expected, skip_special_tokens=True)
        assert generated.continuation


def test_exceeding_the_context_is_an_error(gpt2: Path):
    with pytest.raises(qkv.errors.InputError, match="context of 64"):
        qkv.Generator(gpt2)(PROSE[0], max_new_tokens=64)


def test_a_released_language_model_can_be_finetuned(gpt2: Path, tmp_path: Path, monkeypatch):
    text = " ".join(PROSE * 12)
    loaded = TextDataset({"train": text, "valid": text})
    monkeypatch.setattr(lookup("dataset", "tinyshakespeare"), "read", lambda _: loaded)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    ids = torch.tensor(Tokenizer.from_file(str(gpt2 / "tokenizer.json")).encode(text).ids)
    windows = [ids[begin : begin + 33] for begin in range(0, len(ids) - 1, 32)]
    wanted = sum(theirs(w[None], labels=w[None]).loss * (len(w) - 1) for w in windows) / (len(ids) - 1)
    table = ["train.batch_size=128", "task.length=32", "train.warmup=0", f'init="{gpt2}"']
    recipe = read_recipe("shakespeare-gpt", table).replace(model=GPT2Config())
    start = load_pretrained(recipe)
    task = LanguageModelingTask(loaded, start.tokenizer, start.config, recipe.task, recipe.train, 0)
    assert task.validate(start)["loss"] == pytest.approx(wanted.item(), abs=1e-5)
    done = job.begin(recipe.replace(train=recipe.train.replace(epochs=2)), tmp_path / "run", "cpu")
    assert done.state.best.value < 0.8 * wanted.item()
    assert qkv.Generator(tmp_path / "run")(PROSE[0], max_new_tokens=5).continuation


@pytest.fixture
def marian(tmp_path: Path) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    pieces: dict[str, None] = {}
    for side, lines in (("source", PROSE[:3]), ("target", PROSE[3:])):
        buffer = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 20), model_writer=buffer, vocab_size=60, hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip
        (tmp_path / f"{side}.spm").write_bytes(buffer.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())
        pieces |= dict.fromkeys(processor.id_to_piece(number) for number in range(len(processor)))
    names = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    size = len(names)
    config = transformers.MarianConfig(
        vocab_size=size, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        pad_token_id=size - 1, decoder_start_token_id=size - 1, eos_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    randomise(transformers.MarianMTModel(config)).save_pretrained(tmp_path)
    return tmp_path


def test_a_released_translator_translates_like_transformers(marian: Path):
    theirs = transformers.MarianMTModel.from_pretrained(marian).eval()
    tokenizer = transformers.MarianTokenizer(
        str(marian / "source.spm"), str(marian / "target.spm"), str(marian / "vocab.json")
    )
    translator = qkv.Translator(marian)
    for text in PROSE[:3]:
        ids = tokenizer(text, return_tensors="pt")
        pad = theirs.config.pad_token_id
        expected = theirs.generate(
            **ids, max_new_tokens=12, do_sample=False, num_beams=1, bad_words_ids=[[pad], [1]], renormalize_logits=False
        )[0]
        answer = translator(text, max_new_tokens=12)
        assert answer.text == tokenizer.decode(expected, skip_special_tokens=True)
        cross = answer.attention[0]
        assert "".join(cross.columns[:-1]).replace(" ", "") == text.replace(" ", "")
        assert cross.columns[-1] == "</s>"
        torch.testing.assert_close(torch.from_numpy(cross.weights).sum(-1), torch.ones(cross.weights.shape[:2]))


def test_beam_search_of_a_released_translator_beats_greedy(marian: Path):
    translator = qkv.Translator(marian)
    for text in PROSE[:3]:
        greedy, beam = (translator(text, num_beams=size, length_penalty=0.0, max_new_tokens=8) for size in (1, 6))
        assert beam.score >= greedy.score - 1e-5


def test_a_released_translator_can_be_finetuned(marian: Path, tmp_path: Path):
    theirs = transformers.MarianMTModel.from_pretrained(marian).eval()
    tokenizer = transformers.MarianTokenizer(
        str(marian / "source.spm"), str(marian / "target.spm"), str(marian / "vocab.json")
    )
    read = tokenizer(PROSE[:3], text_target=PROSE[3:], return_tensors="pt", padding=True)
    wanted = theirs(**read.data | {"labels": read.labels.masked_fill(read.labels == tokenizer.pad_token_id, -100)}).loss
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in zip(PROSE[:3], PROSE[3:], strict=True)))
    table = [
        f'data.train=["{pairs}"]', f'data.valid=["{pairs}"]', "train.epochs=60", "train.lr=1e-2", "train.warmup=0",
        "train.best_by=loss", "task.label_smoothing=0.0", f'init="{marian}"',
    ]  # fmt: skip
    recipe = read_recipe("pairs-transformer", table).replace(model=TransformerConfig(dropout=0.0))
    start, data = load_pretrained(recipe), recipe.data.load()
    task = TranslationTask(data, start.tokenizer, start.config, recipe.task, recipe.train, 0)
    loss = task.loss(start, task.batch([0, 1, 2]))
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(task.loss(start, task.batch([0, 1, 2], padded_to_shape=True)), wanted, rtol=0, atol=1e-5)
    job.begin(recipe, tmp_path / "run", "cpu")
    assert [qkv.Translator(tmp_path / "run")(text).text for text in PROSE[:3]] == PROSE[3:]
    task.options = recipe.task.replace(bpe_dropout=0.1)
    with pytest.raises(InputError, match="BPE-dropout"):
        task.epoch(0)
