import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import qkv
from qkv.datasets.dataset import PairDataset
from qkv.metrics import Metric
from qkv.nn.interfaces import TextEncoder
from qkv.tasks.base.example_task import ExampleTask


@qkv.register("task", "regression")
class Regression(ExampleTask):
    """Predicts a number y, the target of a pair, from a text x, its source: loss (f(x) - y)^2."""

    model = TextEncoder
    model_options = {"head": "classifier", "labels": 1}
    from_data = ("vocab_size",)
    datasets = (PairDataset,)
    metrics = {name: Metric(name, higher_is_better=False) for name in ("loss", "absolute error")}

    def encode(self, examples):
        ids = self.tokenizer.encode([pair.source for pair in examples])
        return [(torch.tensor(tokens), float(pair.target)) for tokens, pair in zip(ids, examples)]

    def collate(self, examples):
        tokens, targets = zip(*examples)
        lengths = torch.tensor([len(row) for row in tokens])
        return {"tokens": pad_sequence(tokens, batch_first=True), "lengths": lengths, "targets": torch.tensor(targets)}

    def predict(self, model, batch):
        return model.predict(batch["tokens"], batch["lengths"]).squeeze(-1)

    def loss(self, model, batch):
        return F.mse_loss(self.predict(model, batch), batch["targets"])

    def scores(self, model, batch):
        error = F.l1_loss(self.predict(model, batch), batch["targets"])
        return {"loss": self.loss(model, batch), "absolute error": error}
