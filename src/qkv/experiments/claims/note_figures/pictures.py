"""Figures of documents, captions, memories and scores by length."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from qkv.datasets.corpora.synthetic.bit_sequences import Copy
from qkv.errors import InputError
from qkv.experiments.claims.bottleneck.fixed_context_by_length import FixedContextByLength
from qkv.experiments.claims.documents.crucial_sentences import SMALL_HAN
from qkv.experiments.claims.figure import save_claim_figure
from qkv.experiments.claims.memory.copy_task import BITS, MULTIPLES, TRAINED, train_and_test
from qkv.experiments.claims.note_figures.runs import trained_run
from qkv.experiments.claims.record import read_records, shipped_records
from qkv.experiments.claims.vision.shapes import SMALL_CAPTIONER
from qkv.interpret.document_probe import DocumentProbe
from qkv.interpret.memory_probe import MemoryProbe
from qkv.models.memory.ntm import NTM, NTMConfig
from qkv.pipelines.captioner import Captioner
from qkv.runtime.device import pick_device
from qkv.training.run import Run
from qkv.visualize.caption_figure import save_captions_png
from qkv.visualize.document_figure import save_document_png
from qkv.visualize.memory_figure import save_memory_png

SENTENCES = 8  # of the review
EXAMPLES, OF_EACH = 120, 3  # scenes that are captioned, and captions that are drawn of each kind


def review(runs: Path, path: Path, device: str, seed: int) -> str:
    """Weights of the sentences and words of the first review of the validation split."""
    run = trained_run(runs, device, seed, "movie-reviews-han", *SMALL_HAN)
    example = Run.open(run).data().splits["valid"][0]
    document = DocumentProbe(run, device=device)("\n".join(example.source.splitlines()[:SENTENCES]))
    save_document_png(document, path)
    return f"predicted {document.label}, the label is {example.target}"


def captions(runs: Path, path: Path, device: str, seed: int) -> str:
    """The first captions of the validation split that are right, and the first that are wrong."""
    run = trained_run(runs, device, seed, "shapes-attend", *SMALL_CAPTIONER, "train.epochs=12")
    scenes, captioner = Run.open(run).data().splits["valid"][:EXAMPLES], Captioner(run, device=device)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{row}.png" for row in range(len(scenes.images))]
        for image, file in zip(scenes.images, paths, strict=True):
            Image.fromarray(np.moveaxis(image, 0, -1)).save(file)
        answers = captioner(paths)
    right = [answer for answer, texts in zip(answers, scenes.texts, strict=True) if answer.text in texts]
    wrong = [answer for answer, texts in zip(answers, scenes.texts, strict=True) if answer.text not in texts]
    save_captions_png([*right[:OF_EACH], *wrong[:OF_EACH]], path)
    return f"{len(right)} of {len(answers)} captions are right; {len(right[:OF_EACH])} right ones, then wrong ones"


def memory(runs: Path, path: Path, device: str, seed: int) -> str:
    """Where a neural Turing machine writes and reads while it copies a sequence twice as long as in training."""
    torch.manual_seed(seed)
    bits, longest = BITS["small"], TRAINED["small"]
    config = NTMConfig(input_dim=bits + 2, output_dim=bits, hidden_dim=64, locations=2 * max(MULTIPLES) * longest)
    model = NTM(config).to(pick_device(device))
    train_and_test(model, "small", seed)
    trace = MemoryProbe(model, Copy(bits))((2 * longest,))
    save_memory_png(trace, path)
    return f"{trace.wrong} of {trace.bits} bits are wrong"


def by_length(runs: Path, path: Path, device: str, seed: int) -> str:
    """Score by source length with and without attention, from a record."""
    name = FixedContextByLength.registered_name
    folders = (shipped_records(), runs.parent.parent / "records")
    records = [record for folder in folders for record in read_records(folder) if record.claim == name]
    if not records:
        raise InputError(f"there is no record of {name}: run qkv claims run {name} first")
    newest = max(records, key=lambda record: (record.scale == "full", record.date))
    save_claim_figure(FixedContextByLength, newest, path)
    return f"record of {newest.date[:10]} ({newest.scale} scale, {newest.device})"
