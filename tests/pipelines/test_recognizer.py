"""The recognizer: windows, streaming, searches, constraints and attention, for both kinds of model."""

import wave
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.errors import InputError
from qkv.generation import GenerationConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.pipelines.recognizer import Recognizer, quietest_cut
from tests.generation.kernels import require_kernels
from tests.pipelines.recordings import las, tokenizer, whisper, write_wav

both = pytest.mark.parametrize("make", [whisper, las])


def waveforms(*seconds: float, rate: int = 16000) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(int(length * rate), generator=generator) for length in seconds]


@both
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_gives_the_results_of_single_recordings(make: Any, num_beams: int) -> None:
    recognizer = Recognizer(make(), tokenizer(), use_engine=False)
    config = GenerationConfig(num_beams=num_beams, max_new_tokens=6)
    sounds = waveforms(0.3, 0.1, 0.2, rate=recognizer.log_mel.rate)
    together = recognizer.decode(sounds, config)
    assert len({round(hypothesis.score, 3) for hypothesis in together}) == 3
    for sound, hypothesis in zip(sounds, together, strict=True):
        (alone,) = recognizer.decode([sound], config)
        assert alone.tokens == hypothesis.tokens
        assert alone.score == pytest.approx(hypothesis.score, rel=1e-4)
    assert [row.tokens for row in recognizer.decode(sounds, config, batch_size=2)] == [row.tokens for row in together]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_engine_equals_the_simple_searches(num_beams: int) -> None:
    require_kernels()
    model = whisper(prompt_tokens=(7, 8), suppress_tokens=(5, 6), begin_suppress_tokens=(4, 9), begin_token=10)
    config, sounds = GenerationConfig(num_beams=num_beams, max_new_tokens=9), waveforms(0.3, 1.0, 0.5)
    engine, simple = (Recognizer(model, tokenizer(), use_engine=use) for use in (True, False))
    assert engine.engine is not None
    for found, expected in zip(engine.decode(sounds, config), simple.decode(sounds, config), strict=True):
        assert found.tokens == expected.tokens
        assert found.score == pytest.approx(expected.score, rel=1e-4)


@pytest.mark.parametrize("use_engine", [True, False])
def test_suppressed_tokens_are_not_generated(use_engine: bool) -> None:
    sounds = waveforms(0.3, 1.0, 0.5)

    def first_tokens(**options: Any) -> list[int]:
        recognizer = Recognizer(whisper(**options), tokenizer(), use_engine=use_engine)
        hypotheses = recognizer.decode(sounds, GenerationConfig(max_new_tokens=2))
        return [hypothesis.tokens[0] for hypothesis in hypotheses if hypothesis.tokens]

    free = first_tokens()
    assert free
    assert not {*free} & {*first_tokens(begin_suppress_tokens=tuple({*free}))}
    assert not {*free} & {*first_tokens(suppress_tokens=tuple({*free}))}


def test_the_prompt_precedes_the_transcript() -> None:
    model, sound = whisper(prompt_tokens=(7, 8), begin_token=10), waveforms(0.5)
    recognizer = Recognizer(model, tokenizer(), use_engine=False)
    (best,) = recognizer.decode(sound, GenerationConfig(max_new_tokens=1))
    features, _ = recognizer.features(sound)
    logits = model(features, torch.tensor([[10, 7, 8]]))[0, -1].log_softmax(dim=-1)
    logits[[token for token in range(20) if token in recognizer.tokens.suppressed or token >= len(tokenizer())]] = -99
    assert best.tokens[0] == logits.argmax()


@both
def test_long_recordings_are_read_in_windows_cut_where_it_is_quiet(make: Any, tmp_path: Path) -> None:
    recognizer = Recognizer(make(), tokenizer(), use_engine=False)
    limit = recognizer.max_seconds
    path = write_wav(tmp_path / "long.wav", 2.5 * limit, rate=22050, quiet=(0.8 * limit, 0.9 * limit))
    transcript = recognizer(path, max_new_tokens=3)
    times = [(segment.start, segment.end) for segment in transcript.segments]
    assert times[0][0] == 0
    assert 0.7 * limit < times[0][1] < limit
    assert times[-1][1] == pytest.approx(2.5 * limit, abs=1e-3)
    for (_, end), (start, _) in pairwise(times):
        assert start == pytest.approx(end, abs=1e-3)
    assert transcript.text == " ".join(segment.text for segment in transcript.segments if segment.text)
    streamed = list(recognizer.stream(path, GenerationConfig(max_new_tokens=3)))
    assert [(segment.start, segment.text) for segment in streamed] == [
        (segment.start, segment.text) for segment in transcript.segments
    ]


def test_streaming_reads_a_window_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer, reads = Recognizer(las(), tokenizer()), []
    decode = recognizer.decode
    monkeypatch.setattr(recognizer, "decode", lambda *arguments: (reads.append(1), decode(*arguments))[1])
    stream = recognizer.stream(write_wav(tmp_path / "long.wav", 3.0), GenerationConfig(max_new_tokens=2))
    next(stream)
    assert len(reads) == 1
    assert len(list(stream)) + 1 == len(reads) > 3


def test_the_quietest_block_is_cut_in_the_middle() -> None:
    samples = np.ones(8000, dtype=np.float32)
    samples[7000:7200] = 0
    cut = quietest_cut(samples, 1000)
    assert 7000 <= cut <= 7200
    assert quietest_cut(samples[:100], 1000) == 100


@both
def test_each_token_attends_over_the_recording(make: Any, tmp_path: Path) -> None:
    model = make()
    transcript = Recognizer(model, tokenizer())(write_wav(tmp_path / "a.wav", 0.5))
    (segment,) = transcript.segments
    attention = transcript.attention[0]
    assert attention.rows == tuple(segment.text) or len(attention.rows) == segment.new_tokens
    assert segment.features.shape == (50, 8)
    columns = 25 if make is whisper else 13  # a position has two frames, or four
    assert attention.weights.shape[1:] == (segment.new_tokens, columns)
    assert attention.columns[:2] == (("0.00", "0.02") if make is whisper else ("0.00", "0.04"))
    if make is las:
        np.testing.assert_allclose(attention.weights.sum(axis=-1), 1.0, rtol=1e-4)


def test_alignment_heads_come_first(tmp_path: Path) -> None:
    transcript = Recognizer(whisper(alignment_heads=((1, 0), (0, 1))), tokenizer())(write_wav(tmp_path / "a.wav", 0.5))
    maps = {attention.layer: attention.weights for attention in transcript.attention}
    assert list(maps) == ["alignment", "decoder.1.cross", "decoder.0.cross"]
    np.testing.assert_array_equal(maps["alignment"], [maps["decoder.1.cross"][0], maps["decoder.0.cross"][1]])


def test_models_of_texts_and_of_speech_are_told_apart() -> None:
    config = RNNSeq2SeqConfig(source_vocab_size=14, target_vocab_size=14, hidden_dim=8, embedding_dim=4)
    with pytest.raises(InputError, match="speech"):
        Recognizer(RNNSeq2Seq(config), tokenizer())
    with pytest.raises(InputError, match="qkv transcribe"):
        qkv.Translator(whisper(), tokenizer())


def test_an_array_gives_the_transcript_of_its_file(tmp_path: Path) -> None:
    recognizer = Recognizer(whisper(), tokenizer(), use_engine=False)
    path = write_wav(tmp_path / "a.wav", 1.5)
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    expected = recognizer(path)
    assert expected.new_tokens
    for array in (samples, samples / 32768, (samples / 32768).tolist(), torch.from_numpy(samples.copy())):
        transcript = recognizer({"array": array, "sampling_rate": 16000, "path": "x/b.wav"})
        assert (transcript.text, transcript.source, transcript.score) == (expected.text, "b.wav", expected.score)
    item = {"array": samples, "sampling_rate": 16000}
    assert [transcript.score for transcript in recognizer([path, item])] == pytest.approx([expected.score] * 2)
    for streamed, segment in zip(recognizer.stream(item), expected.segments, strict=True):
        assert (streamed.text, streamed.end) == (segment.text, segment.end)
        assert np.array_equal(streamed.features, segment.features)
    other = recognizer({"array": samples, "sampling_rate": 8000})
    assert other.segments[-1].end == pytest.approx(2 * expected.segments[-1].end)


@pytest.mark.parametrize(
    ("item", "word"),
    [
        ({"array": [0.1]}, "sampling_rate is missing"),
        ({"sampling_rate": 16000}, "array is missing"),
        ({"array": [], "sampling_rate": 16000}, "at least one"),
        ({"array": [[0.1, 0.2]], "sampling_rate": 16000}, "one channel"),
        ({"array": ["a"], "sampling_rate": 16000}, "int16"),
        ({"array": [1000, -2000], "sampling_rate": 16000}, "int64"),  # as 64-bit samples, it would be silent
        ({"array": np.array([1], np.uint8), "sampling_rate": 16000}, "uint8"),
        ({"array": [float("nan")], "sampling_rate": 16000}, "not finite"),
        ({"array": [0.1], "sampling_rate": 10}, "sampling_rate"),
        ({"array": [0.1], "sampling_rate": True}, "sampling_rate"),
        ({"array": [0.1], "sampling_rate": "16000"}, "sampling_rate"),
    ],
)
def test_invalid_arrays_are_errors(item: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Recognizer(whisper(), tokenizer(), use_engine=False)(item)
