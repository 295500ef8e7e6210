"""The baseline of the neural Turing machine: PyTorch's own LSTM, and nothing else."""

import pytest
import torch
from torch import nn

from qkv.errors import InputError
from qkv.interop import load
from qkv.interop.folder import save_model
from qkv.models import MODELS
from qkv.models.lstm_memory import Config, LSTMMemory
from qkv.training.recipe import read_recipe


def make() -> LSTMMemory:
    torch.manual_seed(0)
    return LSTMMemory(Config(3, 2, hidden=5, layers=2)).eval()


def test_it_is_the_lstm_of_pytorch_under_a_linear_layer():
    model, x = make(), torch.randn(2, 7, 3)
    twin = nn.LSTM(3, 5, num_layers=2, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(model.recurrent.layers):
            for name, weight in layer.named_parameters():
                getattr(twin, name.replace("l0", f"l{number}")).copy_(weight)
    torch.testing.assert_close(model(x), model.readout(twin(x)[0]))


def test_a_sequence_may_be_read_in_parts():
    model, x = make(), torch.randn(2, 7, 3)
    first, state = model.read(x[:, :3], model.start(2))
    torch.testing.assert_close(torch.cat((first, model.read(x[:, 3:], state)[0]), dim=1), model(x))


def test_every_weight_gets_a_gradient():
    model = make()
    model(torch.randn(2, 7, 3)).square().sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_a_network_that_was_saved_computes_the_same_bits(tmp_path):
    model, x = make(), torch.randn(2, 5, 3)
    save_model(model, None, tmp_path)
    assert load(tmp_path)(x).equal(model(x))


def test_its_recipe_gives_it_as_many_weights_as_a_machine_has_whose_controller_is_an_lstm():
    counts = {}
    for name in ("copy-lstm", "copy-ntm-lstm", "copy-ntm"):
        recipe = read_recipe(name)
        model = MODELS[recipe.model["name"]][0](recipe.model_config({"inputs": 10, "outputs": 8}))
        counts[name] = sum(weight.numel() for weight in model.parameters())
    assert counts["copy-lstm"] == pytest.approx(counts["copy-ntm-lstm"], rel=0.05)
    assert counts["copy-lstm"] > 4 * counts["copy-ntm"]


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"layers": 65}, {"hidden": 2**17}])
def test_a_config_that_makes_no_sense_is_refused_in_words(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must lie between"):
        Config(3, 2, **wrong)
