"""`qkv transcribe`: speech recognition."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options, texts
from qkv.cli.console import progress_bar, result_json, result_line, results_to

if TYPE_CHECKING:
    from qkv.pipelines.recognizer import Segment

CHUNK = 16  # recordings transcribed at a time


def transcribe(
    run: options.Folder,
    recordings: Annotated[list[str] | None, typer.Argument(metavar="FILE.wav", help="Recording, a WAV file.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Input file, one path per line or a table (- for stdin)."),
    ] = None,
    column: options.InputColumn = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the transcript of each window as it is read.")
    ] = False,
    num_beams: options.NumBeams = 1,
    length_penalty: options.LengthPenalty = 1.0,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: options.BatchSize = None,
    output: options.Output = None,
    device: options.Device = "auto",
    json: options.Json = False,
) -> None:
    """Transcribe speech in WAV files.

    Recordings are arguments, or paths in the lines of a file or of standard input, or in the column "audio" of a table
    (*.csv, *.tsv, *.jsonl), relative to the folder of the table. Each transcript is printed as one line.

    A recording may have any sampling rate; channels are averaged. If it is longer than the model's input, 30 seconds
    for Whisper, it is cut where it is quiet; with --stream, each part is a line that begins with its times in seconds.
    With --json, each line is an object.
    """
    paths = texts.read_texts(recordings, file, strict=True, columns=options.parse_columns(column), role="audio")

    from qkv.generation import GenerationConfig
    from qkv.pipelines.recognizer import Recognizer

    recognizer = Recognizer(run, device=device)
    search: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty}
    search |= {"max_new_tokens": max_new_tokens}
    with results_to(output), progress_bar("transcribing", len(paths), streaming=True) as progress:
        if stream:
            for number, path in enumerate(paths, start=1):
                for segment in recognizer.stream(path, GenerationConfig(**search)):
                    _print_segment(number, path, segment, json=json)
                progress(number)
            return
        for begin in range(0, len(paths), CHUNK):
            transcripts = recognizer(paths[begin : begin + CHUNK], batch_size=batch_size, **search)
            for number, transcript in enumerate(transcripts, start=begin + 1):
                if json:
                    result_json({"input": number, **transcript.to_dict()})
                else:
                    result_line(transcript.text)
            progress(begin + len(transcripts))


def _print_segment(number: int, path: str, segment: "Segment", *, json: bool) -> None:
    if json:
        result_json({"input": number, "recording": Path(path).name, **segment.to_dict()})
    else:
        result_line(f"{segment.start:.2f}", f"{segment.end:.2f}", segment.text)
