"""Explainable predictions of decoders: source tokens of a translation, prompt tokens of a language model."""

from collections.abc import Callable

import torch

from qkv.attention.layers import attention_layers
from qkv.datasets.batching import EncodedPair, collate
from qkv.errors import InputError
from qkv.interpret.explainable import NO_UNIT, Explainable
from qkv.nn.multi_head import MultiHeadAttention
from qkv.pipelines.generator import Generator
from qkv.pipelines.inputs.tree_inputs import reads_trees
from qkv.pipelines.output import Candidate
from qkv.pipelines.translator import Translator
from qkv.types import Bool, Float, Tensor

CANDIDATES = 10  # of the next token


class Decoded(Explainable):
    """A generated text; its outputs are the tokens, each given those before it."""

    def explain_tokens(self, text: str, tokens: list[int], piece: Callable[[int], str], target: str | None) -> None:
        """Explain all tokens of the text, or one by its index or text."""
        if not tokens:
            raise InputError("the model generates an empty text: there is no output to explain")
        self.tokens = tokens
        self.explain_outputs(text, [piece(token) for token in tokens], tokens)
        if target is not None:
            self.select([self._find(target)])

    def _find(self, target: str) -> int:
        names = [output.strip() for output in self.outputs]
        if target.isdecimal() and len(target) < 10 and int(target) < len(names):
            return int(target)  # before tokens, which may be digits
        if target.strip() in names:
            return names.index(target.strip())
        raise InputError(
            f"there is no output token {target!r}: pass one of {' '.join(names)}, or its index, 0 to {len(names) - 1}"
        )

    def query_rows(self, output: int) -> list[int]:
        return [output]


class Translation(Decoded):
    """A translation; its units are the source tokens, without special tokens such as </s>."""

    def __init__(self, translator: Translator, text: str, target: str | None = None) -> None:
        model, tokenizer = translator.model, translator.tokenizer
        if reads_trees(model.config) or getattr(model, "pointer", None) is not None:
            raise InputError(f"{translator.name}: qkv explain does not support models with trees or pointers")
        source, best = translator.decode_one(text)
        self.tokenizer = tokenizer
        self.ids, self.special_tokens = source.encoding.ids, translator.special_tokens
        self.unknown = tokenizer.source.special_tokens.unk or 0
        inside = torch.tensor([begin < end for begin, end in source.encoding.offsets])
        pieces = zip(source.encoding.pieces, inside.tolist(), strict=True)
        units = tuple(piece for piece, is_unit in pieces if is_unit)
        super().__init__(model, units, torch.where(inside, inside.cumsum(0) - 1, NO_UNIT))
        self.layers = model.alignment_layers
        self.self_layers = tuple(name for name in attention_layers(model) if name.startswith("encoder"))
        self.explain_tokens(tokenizer.target.decode(best.tokens), [*best.tokens], tokenizer.target.piece, target)

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants outputs vocabulary"]:
        """Return the logits of each output after those before it, without the source tokens that are not kept."""
        pairs = [EncodedPair(row or [self.unknown], self.tokens) for row in self.kept_tokens(self.ids, keep)]
        batch = collate(pairs, begin=self.special_tokens.begin, end=self.special_tokens.end).to(self.model.device)
        return self.model(batch.source, batch.target_in, batch.source_lengths)[:, self.rows]

    def to_input_units(self, values: Float[Tensor, "outputs positions"]) -> Float[Tensor, "outputs units"]:
        """Sum values of the embeddings by unit; an RNN encoder can reverse its source."""
        return self.to_units(values.flip(1) if getattr(self.model.encoder, "reverse", False) else values)


class NextToken(Explainable):
    """The next token of a language model; its units are the tokens of the prompt."""

    def __init__(self, generator: Generator, prompt: str, target: str | None = None) -> None:
        self.generator, tokenizer = generator, generator.tokenizer
        (encoding,) = generator.encode([prompt], max_new_tokens=1)
        self.ids = encoding.ids
        inside = torch.tensor([begin < end for begin, end in encoding.offsets])
        units = tuple(piece for piece, is_unit in zip(encoding.pieces, inside.tolist(), strict=True) if is_unit)
        super().__init__(generator.model, units, torch.where(inside, inside.cumsum(0) - 1, NO_UNIT))
        special = tokenizer.special_tokens
        self.empty = next(token for token in (special.begin, special.end, special.unk, 0) if token is not None)
        # Not those of an LSTMN, where a token attends to the tokens before it only.
        blocks = [module.attend for module in self.model.modules() if isinstance(module, MultiHeadAttention)]
        names = [name for name, attend in attention_layers(self.model).items() if attend in blocks]
        self.layers, self.self_layers = tuple(reversed(names)), tuple(names)
        with torch.no_grad():
            p = self.forward(self.everything())[0, 0].float().softmax(dim=-1).cpu()
        best = p.topk(min(CANDIDATES, int((p > 0).sum())))
        self.labels = tuple(map(Candidate, map(tokenizer.piece, best.indices.tolist()), best.values.tolist()))
        predicted = int(best.indices[0])
        chosen = predicted if target is None else self._find(target, p)
        self.explain_outputs(
            prompt + generator.continuation(self.ids, [predicted]), [tokenizer.piece(chosen)], [chosen]
        )

    def _find(self, target: str, p: Float[Tensor, "vocabulary"]) -> int:
        """Return the id of a token; of those with and without a space before the text, the more likely one."""
        tokenizer = self.generator.tokenizer
        encoded = [ids for ids in tokenizer.encode([target, f" {target}"]) if len(ids) == 1]
        ids = {token for (token,) in encoded} | {tokenizer.vocab.get(target, -1)}
        ids -= {-1, tokenizer.special_tokens.unk, *self.generator.suppressed}
        if not ids:
            raise InputError(f"target {target!r} must be one token of the model's vocabulary")
        return max(ids, key=lambda token: float(p[token]))

    def forward(self, keep: Bool[Tensor, "variants units"]) -> Float[Tensor, "variants 1 vocabulary"]:
        """Return the logits of the next token after the prompt without the tokens that are not kept."""
        rows = [row or [self.empty] for row in self.kept_tokens(self.ids, keep)]
        width = max(map(len, rows))
        # Padding comes last, where no token of the text attends to it.
        tokens = torch.tensor([[*row, *[self.empty] * (width - len(row))] for row in rows], device=self.model.device)
        last = torch.tensor([len(row) - 1 for row in rows], device=tokens.device)
        hidden = self.model.hidden_states(tokens)[torch.arange(len(rows), device=tokens.device), last]
        logits = self.model.readout(hidden)
        logits[:, self.generator.suppressed] = -torch.inf
        logits[:, len(self.generator.tokenizer) :] = -torch.inf  # rows that only pad the embedding table
        return logits[:, None]

    def query_rows(self, output: int) -> list[int]:
        return [len(self.ids) - 1]
