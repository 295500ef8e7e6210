"""Convert SentencePiece unigram models (Kudo and Richardson 2018) to the `tokenizers` library."""

import math
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from qkv.errors import CheckpointError, InputError
from qkv.tokenizers.library import SPACE, tokenizer_errors
from qkv.tokenizers.limits import MAX_TOKENS, TRIM, check_charsmap, check_unigram

MAX_PIECE_BYTES = 2**10


def sentencepiece_tokenizer(data: bytes, where: str) -> Tokenizer:
    """Convert the bytes of a model file; error messages start with `where`. Token ids are those of the result."""
    model = _parse(data, where)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type != trainer.UNIGRAM or trainer.treat_whitespace_as_suffix:
        raise CheckpointError(f"{where}: only unigram models with whitespace as prefix are supported")
    kinds = {piece.type for piece in model.pieces}
    if kinds & {model.SentencePiece.USER_DEFINED, model.SentencePiece.BYTE} or not normalizer.escape_whitespaces:
        raise CheckpointError(f"{where}: user-defined pieces, byte pieces and unescaped whitespace are not supported")
    unknown = [piece.piece for piece in model.pieces if piece.type == piece.UNKNOWN]
    vocabulary = [(piece.piece, piece.score) for piece in model.pieces if piece.type == piece.NORMAL]
    if len(unknown) != 1 or not vocabulary:
        raise CheckpointError(f"{where}: must have one unknown piece and at least one normal piece")
    if len({text for text, _ in vocabulary} | {unknown[0]}) < len(vocabulary) + 1:
        raise CheckpointError(f"{where}: has duplicate pieces")
    with tokenizer_errors(where):
        check_unigram(text for text, _ in vocabulary)
        tokenizer = Tokenizer(models.Unigram([(unknown[0], 0.0), *vocabulary], 0))
        steps: list[normalizers.Normalizer] = []
        if normalizer.precompiled_charsmap:
            check_charsmap(normalizer.precompiled_charsmap)
            steps.append(normalizers.Precompiled(normalizer.precompiled_charsmap))
        if normalizer.remove_extra_whitespaces:
            steps += [normalizers.Replace(Regex(TRIM), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if normalizer.add_dummy_prefix:
            steps.append(normalizers.Prepend(SPACE))
        # Pieces may contain spaces, so the text is not split at them.
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        tokenizer.decoder = decoders.Metaspace(SPACE, "always" if normalizer.add_dummy_prefix else "never")
        tokenizer.encode("a")
    return tokenizer


def _parse(data: bytes, where: str) -> Any:
    """Parse the protocol buffer of a model file, and check its pieces."""
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise InputError(
            f"{where}: SentencePiece models require sentencepiece, which is not installed: pip install 'qkv[marian]'"
        ) from None
    try:
        model = sentencepiece_model_pb2.ModelProto.FromString(data)  # type: ignore[attr-defined]
        if len(model.pieces) > MAX_TOKENS:
            raise ValueError(f"more than {MAX_TOKENS:,} pieces")
        for piece in model.pieces:
            if not isinstance(piece.piece, str):  # bytes
                raise ValueError("a piece is not UTF-8")
            if not 0 < len(piece.piece.encode()) <= MAX_PIECE_BYTES:
                raise ValueError(f"a piece of {len(piece.piece.encode())} bytes")
            if not math.isfinite(piece.score):
                raise ValueError("a score is not finite")
    except (DecodeError, ValueError) as error:
        raise CheckpointError(f"{where}: not a valid SentencePiece model: {error}") from None
    return model
