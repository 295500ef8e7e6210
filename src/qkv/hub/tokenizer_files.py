"""Check the tokenizer of a saved model against its config."""

from pathlib import Path
from typing import Any

from qkv.errors import CheckpointError
from qkv.tokenizers import Tokenizer
from qkv.tokenizers.pair_tokenizer import TARGET
from qkv.tokenizers.tokenizer import TOKENIZER


def check_vocab_size(folder: Path, tokenizer: Tokenizer, config: Any) -> None:
    """Raise if a tokenizer has more tokens than the model's embedding."""
    target_file = f"{TARGET}{TOKENIZER}" if (folder / f"{TARGET}{TOKENIZER}").exists() else TOKENIZER
    sizes = {
        "source_vocab_size": (tokenizer.source, TOKENIZER),
        "target_vocab_size": (tokenizer.target, target_file),
        "vocab_size": (tokenizer.source, TOKENIZER),
    }
    for key, (side, file) in sizes.items():
        vocab_size = getattr(config, key, None)
        if vocab_size is not None and len(side) > vocab_size:
            where = folder / file if (folder / file).exists() else folder
            raise CheckpointError(f"{where}: {len(side):,} tokens, but the model's vocabulary size is {vocab_size:,}")
