"""Claim 50: contextual vectors separate the senses of a word."""

import torch

from qkv.experiments.claims.claim import Note, Panel, SampledClaim, Scale
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.pretraining.contextual import compare, minilm_folder, word_vectors
from qkv.experiments.claims.pretraining.senses import SENSES
from qkv.experiments.claims.verdict import Difference, Mean
from qkv.hub import load_as
from qkv.models.bert import Bert
from qkv.registry import register
from qkv.types import Tensor


@register("claim", "word-senses")
class WordSenses(SampledClaim):
    """Similarity of the vectors of a word in sentences with the same sense and with different senses."""

    number = 50
    title = "Contextual vectors separate the senses of a word"
    statement = (
        "A word embedding is the same in every sentence. The vectors of a pretrained encoder depend on the whole "
        "sentence, so that a word with two senses has different vectors for them."
    )
    notes = (Note("003", "ELMo model"), Note("003", "BERT model"))
    equation = "input: E[x_t];   contextual: h_t = f(x_1 ... x_n)_t;   similarity = cos(h, h')"
    source = ("src/qkv/models/bert.py::Bert", "src/qkv/experiments/claims/pretraining/contextual.py::word_vectors")
    hypothesis = (
        "For six words in four sentences per sense, the vectors of the last layer of a pretrained encoder with six "
        "layers (MiniLM) are more similar within a sense than between senses, by a cosine of at least 0.1, and the "
        "most similar of the other seven sentences has the same sense for at least 80 % (by chance 43 %). The input "
        "embeddings have similarity 1 between senses."
    )
    criteria = (
        Difference("similarity: same sense", "similarity: different senses", low=0.1),
        Mean("most similar sentence has the same sense: contextual", low=80.0),
        Mean("similarity of input embeddings: different senses", low=1 - 1e-5),
    )
    figure = (
        Panel(
            "A word in sentences of two senses", "cosine similarity of its vectors",
            ("similarity by layer: same sense", "similarity by layer: different senses"),
            x_label="layer (0: input embedding)",
        ),
    )  # fmt: skip
    limits = (
        "The senses of these words are unrelated. Related senses, as of a school and its building, are closer. The "
        "model was trained further to compare sentences, which brings words of similar sentences closer together."
    )
    seeds = 1
    deterministic = True

    def sample(self, scale: Scale, device: torch.device) -> Sample:
        model = load_as(Bert, minilm_folder(), device=device)
        same, different, nearest = list[Tensor](), list[Tensor](), list[Tensor]()
        for word, senses in SENSES.items():
            vectors = word_vectors(model, word, [sentence for sense in senses for sentence in sense])
            labels = torch.tensor([number for number, sense in enumerate(senses) for _ in sense], device=device)
            for total, value in zip((same, different, nearest), compare(vectors, labels), strict=True):
                total.append(value)
        within, between = ([float(x) for x in torch.stack(rows).mean(dim=0)] for rows in (same, different))
        values = {
            "similarity: same sense": within[-1],
            "similarity: different senses": between[-1],
            "most similar sentence has the same sense: contextual": 100 * float(torch.stack(nearest).mean()),
            "similarity of input embeddings: different senses": between[0],
        }
        curves = {"same sense": within, "different senses": between}
        return Sample(values, {f"similarity by layer: {name}": dict(enumerate(c)) for name, c in curves.items()})
