"""The synthesizer: frequencies by FFT, durations and the WAV file."""

import wave

import numpy as np
import pytest

from qkv.datasets.formats.abc_notation import parse_tune
from qkv.errors import InputError
from qkv.pipelines.synthesizer import RATE, frequency, play_abc, synthesize


def tune(music: str, header: str = "L:1/4\nK:C"):
    return parse_tune(f"X:1\nT:Test\n{header}\n{music}")


def loudest(samples: np.ndarray) -> float:
    """Frequency of the largest peak of the spectrum."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), n=2**18))
    return float(np.fft.rfftfreq(2**18, 1 / RATE)[spectrum.argmax()])


def test_frequencies_of_the_piano():
    assert frequency(69) == 440.0
    assert frequency(60) == pytest.approx(261.6256, abs=1e-4)
    assert frequency(81) == 880.0


@pytest.mark.parametrize(("note", "hertz"), [("A", 440.0), ("c", 523.2511), ("G,", 195.9977), ("^f'", 1479.978)])
def test_the_loudest_frequency_is_that_of_the_note(note, hertz):
    assert loudest(synthesize(tune(f"{note}4"))) == pytest.approx(hertz, rel=2e-3)


def test_notes_and_rests_are_at_their_times():
    samples = synthesize(tune("A z e"))  # at 120 quarter notes per minute: half a second each
    assert len(samples) == round(1.5 * RATE)
    first, rest, last = np.split(samples, 3)
    assert loudest(first) == pytest.approx(440.0, rel=5e-3)
    assert np.abs(rest).max() == 0.0
    assert loudest(last) == pytest.approx(659.2551, rel=5e-3)
    assert np.abs(samples).max() == pytest.approx(0.8, abs=1e-3)


def test_the_notes_of_a_chord_sound_together():
    spectrum = np.abs(np.fft.rfft(synthesize(tune("[Ae]4")), n=2**18))
    frequencies = np.fft.rfftfreq(2**18, 1 / RATE)
    for hertz in (440.0, 659.2551):
        near = spectrum[np.abs(frequencies - hertz) < 3].max()
        assert near > 20 * np.median(spectrum)


def test_a_wav_file_is_written(tmp_path):
    played = play_abc("X:1\nT:Scale\nQ:1/4=60\nL:1/4\nK:D\nDEFG|", tmp_path / "scale.wav")
    assert played.title == "Scale"
    with wave.open(str(tmp_path / "scale.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert file.getnframes() == 4 * RATE
        samples = np.frombuffer(file.readframes(RATE), dtype="<i2")
    assert loudest(samples / 32768) == pytest.approx(293.6648, rel=5e-3)


def test_too_long_a_tune_is_an_error():
    with pytest.raises(InputError, match="seconds"):
        synthesize(tune("C999", "Q:1/4=1\nL:1/4\nK:C"))
