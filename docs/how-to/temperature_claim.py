import torch

import qkv
from qkv.experiments.claims.claim import Note, Panel, SampledClaim
from qkv.experiments.claims.measurements import Sample
from qkv.experiments.claims.verdict import Difference


@qkv.register("claim", "temperature-entropy")
class TemperatureEntropy(SampledClaim):
    """Entropy of softmax weights at two temperatures."""

    number = 101
    title = "A higher temperature spreads attention"
    statement = "Dividing the scores by a temperature above 1 makes the attention weights more uniform."
    notes = (Note("002", "Softmax"),)
    equation = "a = softmax(s / T)"
    source = ("src/qkv/attention/align.py::Softmax",)
    hypothesis = "The mean entropy at T = 2 is at least 0.1 nats higher than at T = 1."
    criteria = (Difference("entropy: T = 2", "entropy: T = 1", low=0.1),)
    figure = (Panel("Entropy of the weights", "nats", points=("entropy: T = 1", "entropy: T = 2")),)
    limits = "Scores with a larger variance."

    def sample(self, scale, device):
        scores = torch.randn(1000, 16, device=device)
        entropy = {T: torch.distributions.Categorical(logits=scores / T).entropy().mean() for T in (1, 2)}
        return Sample({f"entropy: T = {T}": float(value) for T, value in entropy.items()})
