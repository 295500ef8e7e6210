"""Convert SentencePiece models (Kudo and Richardson 2018), unigram or byte-pair, to the `tokenizers` library."""

import math
import struct
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, processors

from qkv.errors import CheckpointError, InputError
from qkv.tokenizers.library import SPACE, PretrainedTokenizer, tokenizer_errors
from qkv.tokenizers.limits import MAX_TOKENS, TRIM, check_charsmap, check_unigram

MAX_PIECE_BYTES = 2**10
MAX_LLAMA2C_BYTES = 2**24  # of a tokenizer.bin; that of Llama 2, with 32,000 tokens, has 432,717
LLAMA_SPECIAL = ("<unk>", "<s>", "</s>")  # ids 0 to 2
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # ids 3 to 258


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
        # Tokens may contain spaces, so the text is not split at them.
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        tokenizer.decoder = decoders.Metaspace(SPACE, "always" if normalizer.add_dummy_prefix else "never")
        tokenizer.encode("a")
    return tokenizer


def llama_tokenizer(data: bytes, where: str) -> PretrainedTokenizer:
    """Convert the bytes of the byte-pair model (tokenizer.model) of Llama and Llama 2."""
    model = _parse(data, where)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type != trainer.BPE or normalizer.precompiled_charsmap or not normalizer.escape_whitespaces:
        raise CheckpointError(f"{where}: only byte-pair models without normalization are supported")
    if not normalizer.add_dummy_prefix or normalizer.remove_extra_whitespaces:
        raise CheckpointError(f"{where}: only models that add a space before a text, and keep others, are supported")
    return _byte_pair_tokenizer([(piece.piece, piece.score) for piece in model.pieces], "</s>", where)


def llama2c_tokenizer(data: bytes, vocab_size: int, where: str) -> PretrainedTokenizer:
    """Read the tokenizer of llama2.c: the length of the longest token, then score, length and bytes of each.

    Texts are separated by <s>, which ends a generated text.
    """
    if len(data) > MAX_LLAMA2C_BYTES:
        raise CheckpointError(f"{where}: its tokenizer is larger than {MAX_LLAMA2C_BYTES:,} bytes")
    pieces, offset = [], 4
    for token_id in range(vocab_size):
        if len(data) < offset + 8:
            raise CheckpointError(f"{where}: its tokenizer has {token_id:,} tokens, but vocab_size is {vocab_size:,}")
        score, length = struct.unpack_from("<fi", data, offset)
        piece = data[offset + 8 : offset + 8 + length] if 0 <= length <= MAX_PIECE_BYTES else b""
        if len(piece) != length or not math.isfinite(score):
            raise CheckpointError(f"{where}: its tokenizer is truncated or corrupt at token {token_id:,}")
        pieces.append((piece.decode(errors="replace").replace(" ", SPACE), score))
        offset += 8 + length
    if offset != len(data):
        raise CheckpointError(f"{where}: has {len(data) - offset:,} bytes behind its tokenizer")
    # Special tokens and bytes are written for display, e.g. "\n<s>\n".
    fixed = (*LLAMA_SPECIAL, *BYTES)[: len(pieces)]
    named = [(name, score) for name, (_, score) in zip(fixed, pieces, strict=False)]
    return _byte_pair_tokenizer([*named, *pieces[len(fixed) :]], "<s>", where)


def _byte_pair_tokenizer(pieces: list[tuple[str, float]], end: str, where: str) -> PretrainedTokenizer:
    """Return the tokenizer that repeatedly merges the pair whose union has the highest score.

    Characters that are no piece are encoded as bytes. Texts begin with <s> and a space.
    """
    vocab = {text: token_id for token_id, (text, _) in enumerate(pieces)}
    if len(vocab) < len(pieces) or tuple(vocab)[:259] != (*LLAMA_SPECIAL, *BYTES):
        raise CheckpointError(f"{where}: must begin with {', '.join(LLAMA_SPECIAL)} and all bytes, without duplicates")
    with tokenizer_errors(where):
        check_unigram(vocab)
        splits = [
            (score, piece[:cut], piece[cut:])
            for piece, score in pieces[259:]
            for cut in range(1, len(piece))
            if piece[:cut] in vocab and piece[cut:] in vocab
        ]
        splits.sort(key=lambda split: -split[0])
        tokenizer = Tokenizer(
            models.BPE(vocab, [(a, b) for _, a, b in splits], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        tokenizer.add_special_tokens(list(LLAMA_SPECIAL))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", vocab["<s>"])]
        )
        return PretrainedTokenizer(tokenizer, {"unk": "<unk>", "begin": "<s>", "end": end})


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
