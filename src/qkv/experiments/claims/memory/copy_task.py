"""Training on copies of short sequences, and the test on longer ones."""

from typing import Any

import torch
from torch.nn import functional as F

from qkv.datasets.corpora.synthetic.bit_sequences import Copy, Sequences
from qkv.experiments.claims.claim import Scale
from qkv.nn.interfaces import SequenceModel

BITS = {"small": 4, "full": 8}
TRAINED = {"small": 5, "full": 20}  # longest sequence in training
MULTIPLES = (1, 2, 4)  # tested lengths, as multiples of it
STEPS = {"small": 1500, "full": 4000}
LEARNING_RATE = {"small": 1e-2, "full": 3e-3}
BATCH, CLIP, TEST_SIZE = 16, 0.1, 50


def train_and_test(model: SequenceModel[Any], scale: Scale, seed: int) -> dict[int, float]:
    """Train a model to copy; return the share of wrong bits, in percent, by the multiple of the trained length."""
    copy, longest = Copy(BITS[scale]), TRAINED[scale]
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE[scale])
    for step in range(STEPS[scale]):
        length = int(torch.randint(1, longest + 1, ()))
        inputs, targets = answers(copy.generate(f"train {seed} {step}", BATCH, (length,)), model.device)
        loss = F.binary_cross_entropy_with_logits(model(inputs)[:, -length:], targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    wrong = {}
    with torch.no_grad():
        for multiple in MULTIPLES:
            length = multiple * longest
            inputs, targets = answers(copy.generate(f"test {length}", TEST_SIZE, (length,)), model.device)
            wrong[multiple] = 100 * float(((model(inputs)[:, -length:] > 0) != (targets > 0.5)).double().mean())
    return wrong


def answers(sequences: Sequences, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs of all steps, and the targets of the steps of the answer."""
    targets = sequences.targets[:, sequences.answer_mask > 0]
    return torch.from_numpy(sequences.inputs).to(device), torch.from_numpy(targets).to(device)
