"""One RNN over source, <TRANSLATE>, target."""

import pytest
import torch

from qkv.errors import InputError
from qkv.models.single_rnn import SingleRNN, SingleRNNConfig


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_logits_are_those_of_one_sequence(cell, layers):
    """PyTorch's own RNN runs over source and target as one sequence."""
    torch.manual_seed(0)
    config = SingleRNNConfig(
        source_vocab_size=9, target_vocab_size=9, cell=cell, layers=layers, embedding_dim=5, hidden_dim=7
    )
    model = SingleRNN(config).eval()
    theirs = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](5, 7, layers, batch_first=True)
    for number, layer in enumerate(model.rnn.layers):
        for name, weight in layer.named_parameters():
            getattr(theirs, name.replace("l0", f"l{number}")).copy_(weight)
    source, target = torch.tensor([[4, 5, 6, 7], [8, 4, 0, 0]]), torch.tensor([[2, 5, 5], [2, 6, 8]])
    logits = model(source, target, torch.tensor([4, 2]))
    for row, length in enumerate((4, 2)):
        sequence = torch.cat((source[row, :length], target[row]))
        expected, _ = theirs(model.embed(sequence)[None])
        torch.testing.assert_close(logits[row], model.readout(expected[0, length:]))


def test_two_vocabularies_are_an_error():
    with pytest.raises(InputError, match="shared vocabulary"):
        SingleRNNConfig(source_vocab_size=9, target_vocab_size=8)
