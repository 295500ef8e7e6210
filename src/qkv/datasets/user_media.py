"""Datasets of images and recordings read from files and folders of the user."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from pydantic import Field

from qkv.datasets.columns import ACCURACY, CAPTIONS, EXACT
from qkv.datasets.columns import Column as ResultColumn
from qkv.datasets.dataset import CaptionDataset, ImageDataset, TextDatasetConfig
from qkv.datasets.examples.captions import Captions
from qkv.datasets.examples.speech import Recordings, SpeechDataset
from qkv.datasets.formats.audio import WavFile
from qkv.datasets.formats.folders import class_folders, file_of_row, files_with_suffix, find_table
from qkv.datasets.formats.images import SUFFIXES, LabeledImages, read_images
from qkv.datasets.formats.roles import CAPTIONED_IMAGE, LABELED_IMAGE, RECORDING, Role
from qkv.datasets.formats.text_files import (
    digest,
    hold_out,
    read_table,
    read_text,
    skipped_note,
    table_notes,
)
from qkv.datasets.user_files import UserFiles
from qkv.errors import InputError
from qkv.registry import register
from qkv.runtime.files import sampled_sha256
from qkv.runtime.text import printable

SIDE = 64  # pixels of an image, if unset
WAV = (".wav", ".wave")

Side = Annotated[int, Field(ge=1, le=4096)]


class UserImageFiles(UserFiles):
    """Image files, resized to squares."""

    hashed = "their pixels"
    unique = True

    valid_share: Annotated[float, Field(gt=0, lt=1)] = 0.1  # share of the training examples held out
    side: Side | None = None  # images are resized to side x side pixels; unset: 64, or as init was trained
    skip_unreadable: bool = False  # skip images that cannot be read, instead of raising an error

    def read_pixels(
        self, paths: Sequence[Path], notes: list[str], channels: int = 3
    ) -> tuple[UInt8[ndarray, "count channels side side"], list[int]]:
        """Return the pixels of images, and the indices of those that could be read."""
        pixels, kept, skipped = read_images(paths, channels, self.side or SIDE, skip_unreadable=self.skip_unreadable)
        notes += skipped
        return pixels, kept


@register("dataset", "images")
class UserImages(UserImageFiles):
    """Images in a folder per class, or listed with their labels in a TSV, CSV or JSONL file."""

    summary = "your own images: a folder with a subfolder per class, or a table of files and labels (data.train)"
    usage = "no images given: --data photos/, with a subfolder for each class"
    description = "images with labels"
    section = "images"
    recipe = "images-vit"
    roles = LABELED_IMAGE
    columns = ACCURACY
    dataset_class = ImageDataset

    channels: Literal[1, 3] = 3  # 1: grayscale, 3: RGB

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> LabeledImages:
        listed = [file for path in paths for file in self._listed(path, notes)]
        if not listed:
            raise InputError(f"{' and '.join(map(str, paths))}: no images found ({', '.join(SUFFIXES)})")
        # Mixed by a hash, so that the first images (data.size) are of all classes.
        listed = sorted(listed, key=lambda file: digest(f"{file[1]}/{file[0].name}"))
        pixels, kept = self.read_pixels([path for path, _ in listed], notes, self.channels)
        if not kept:
            raise InputError(f"{' and '.join(map(str, paths))}: none of the images can be read")
        labels = [listed[index][1] for index in kept]
        names = tuple(sorted(set(labels)))
        indices = np.array([names.index(label) for label in labels], dtype=np.int64)
        return LabeledImages(pixels, indices, names, tuple(str(listed[index][0]) for index in kept))

    def _listed(self, path: Path, notes: list[str]) -> list[tuple[Path, str]]:
        """Return the image files of a folder or table, with their labels."""
        if not path.is_dir():
            return _listed_files(path, LABELED_IMAGE, self.column_names, notes)
        folders = class_folders(path)
        if not folders and (table := find_table(path)) is not None:
            return _listed_files(table, LABELED_IMAGE, self.column_names, notes)
        listed: list[tuple[Path, str]] = []
        for folder in folders:
            images, others = files_with_suffix(folder, SUFFIXES)
            listed += [(image, folder.name) for image in images]
            if others:
                notes.append(
                    f"{folder}: skipped {len(others):,} file(s) that are no images, the first {others[0].name}"
                )
            if not images:
                notes.append(f"{folder}: contains no images, so it is no class")
        if not listed and files_with_suffix(path, SUFFIXES)[0]:
            raise InputError(f"{path}: has images but no subfolders: move the images of each class into a subfolder")
        return listed

    def finish(self, splits: dict[str, Any]) -> dict[str, Any]:
        names = splits["train"].names
        return {split: examples.with_names(names, split) for split, examples in splits.items()}

    def check(self, examples: LabeledImages) -> None:
        if len(examples.names) < 2:
            raise InputError(
                f"{self.train_names}: all images have one class, {printable(repr(examples.names[0]), 40)}: at least "
                "two classes are required, each in a subfolder"
            )

    def keys(self, examples: LabeledImages) -> list[str]:
        return [hashlib.sha256(image).hexdigest() for image in examples.pixels]

    def select(self, examples: LabeledImages, rows: Sequence[int]) -> LabeledImages:
        return examples.select(rows)

    def hold_out(self, examples: LabeledImages) -> tuple[LabeledImages, LabeledImages]:
        """Hold out images of each class; a class with a single image keeps it."""
        keys = self.keys(examples)
        held_out = set[str]()
        for label in range(len(examples.names)):
            of_class = [keys[row] for row in np.flatnonzero(examples.labels == label)]
            if len(set(of_class)) > 1:
                held_out.update(hold_out(of_class, self.valid_share, str)[1])
        rows = range(len(keys))
        if not held_out:
            raise InputError("every class has a single image, so none can be held out: add images, or pass --valid")
        kept = [row for row in rows if keys[row] not in held_out]
        return examples.select(kept), examples.select([row for row in rows if keys[row] in held_out])


@register("dataset", "captions")
class UserCaptions(UserImageFiles, TextDatasetConfig):
    """Image files, listed with their captions in a TSV, CSV or JSONL file."""

    summary = "your own images with captions, listed in a TSV, CSV or JSONL file (data.train)"
    usage = "no captions given: --data captions.csv, with the columns image and caption"
    description = "images with captions"
    section = "captions"
    recipe = "captions-attend"
    roles = CAPTIONED_IMAGE
    columns = CAPTIONS
    dataset_class = CaptionDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> Captions:
        texts: dict[Path, list[str]] = {}
        for path in paths:
            table_path = _table_of(path)
            table = read_table(table_path, CAPTIONED_IMAGE, self.column_names)
            notes += table_notes(table, str(table_path))
            empty = []
            for row in table.rows:
                image, cell = row.text("image", str(table_path)).strip(), row.cells["caption"]
                captions = [text.strip() for text in ([cell] if isinstance(cell, str) else cell) if text.strip()]
                if not image or not captions:
                    empty.append(row.number)
                    continue
                where = f"{table_path}: line {row.number}"
                file = file_of_row(table_path.parent, image, captions[0], where)
                texts.setdefault(file, []).extend(captions)
            notes += skipped_note(str(table_path), empty, "no image or no caption")
        if not texts:
            raise InputError(f"{' and '.join(map(str, paths))}: no captions found")
        listed = list(texts.items())
        pixels, kept = self.read_pixels([file for file, _ in listed], notes)
        texts_of_images = tuple(tuple(listed[index][1]) for index in kept)
        return Captions(pixels, texts_of_images, files=tuple(str(listed[index][0]) for index in kept))

    def keys(self, examples: Captions) -> list[str]:
        return [hashlib.sha256(image).hexdigest() for image in examples.images]

    def select(self, examples: Captions, rows: Sequence[int]) -> Captions:
        texts = tuple(examples.texts[row] for row in rows)
        return Captions(examples.images[rows], texts, files=tuple(examples.files[row] for row in rows))


@register("dataset", "speech")
class UserSpeech(UserFiles, TextDatasetConfig):
    """WAV files with their texts: listed in a TSV, CSV or JSONL file, or with a text file next to each."""

    summary = "your own recordings: WAV files with their texts in a table or in text files (data.train)"
    usage = "no recordings given: --data recordings.tsv with the columns audio and text, or --data FOLDER of WAV files"
    description = "recordings with their texts"
    section = "speech"
    recipe = "speech-las"
    roles = RECORDING
    hashed = "their samples"
    unique = True
    columns = (ResultColumn("wer", "word error rate, %", 100, higher_is_better=False), EXACT)
    dataset_class = SpeechDataset

    def read_examples(self, paths: Sequence[Path], notes: list[str]) -> Recordings:
        listed = [recording for path in paths for recording in self._listed(path, notes)]
        if not listed:
            raise InputError(f"{' and '.join(map(str, paths))}: no recordings found")
        files = [WavFile.open(path) for path, _ in listed]
        for file in files:
            if file.rate != files[0].rate:
                raise InputError(
                    f"{file.path}: has {file.rate:,} Hz, but {files[0].path} {files[0].rate:,} Hz: resample one of them"
                )
        return Recordings(tuple(files), tuple(text for _, text in listed))

    def _listed(self, path: Path, notes: list[str]) -> list[tuple[Path, str]]:
        """Return the WAV files of a folder or table, with their texts."""
        table = find_table(path) if path.is_dir() else path
        return (
            _with_text_files(path, notes)
            if table is None
            else _listed_files(table, RECORDING, self.column_names, notes)
        )

    def keys(self, examples: Recordings) -> list[str]:
        return [sampled_sha256(file.path) for file in examples.files]

    def select(self, examples: Recordings, rows: Sequence[int]) -> Recordings:
        files, texts = zip(*((examples.files[row], examples.transcripts[row]) for row in rows), strict=True)
        return Recordings(files, texts)


def _listed_files(
    path: Path, roles: Sequence[Role], columns: Mapping[str, str], notes: list[str]
) -> list[tuple[Path, str]]:
    """Return the files that a table of two columns names, each with the text in the other column."""
    table, (file_role, text_role) = read_table(path, roles, columns), (role.name for role in roles)
    notes += table_notes(table, str(path))
    listed, empty = [], []
    for row in table.rows:
        name, text = (row.text(role, str(path)).strip() for role in (file_role, text_role))
        if name and text:
            listed.append((file_of_row(path.parent, name, text, f"{path}: line {row.number}"), text))
        else:
            empty.append(row.number)
    notes += skipped_note(str(path), empty, f"no {file_role} or no {text_role}")
    return listed


def _table_of(path: Path) -> Path:
    """Return a table, or that of a folder."""
    if not path.is_dir():
        return path
    table = find_table(path)
    if table is None:
        raise InputError(f"{path}: there is no table with image and caption in this folder, such as captions.csv")
    return table


def _with_text_files(folder: Path, notes: list[str]) -> list[tuple[Path, str]]:
    """Return the WAV files below a folder, each with the text of the .txt file next to it."""
    recordings, others = files_with_suffix(folder, WAV)
    texts = {path.with_suffix(""): path for path in others if path.suffix.lower() == ".txt"}
    listed, missing = [], []
    for path in recordings:
        text_path = texts.pop(path.with_suffix(""), None)
        if text_path is None:
            missing.append(path)
        else:
            listed.append((path, " ".join(read_text(text_path).split())))
    if missing:
        raise InputError(
            f"{missing[0]}: has no text: expected {missing[0].with_suffix('.txt').name} next to it, or a table in "
            f"{folder} ({len(missing):,} of {len(recordings):,} recordings have none)"
        )
    if texts:
        notes.append(f"{folder}: {len(texts):,} text(s) without a recording, the first {min(texts.values())}")
    empty = [path for path, text in listed if not text]
    if empty:
        notes.append(f"{folder}: skipped {len(empty):,} recording(s) with an empty text, the first {empty[0]}")
    return [(path, text) for path, text in listed if text]
