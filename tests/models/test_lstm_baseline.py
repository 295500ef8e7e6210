"""The LSTM baseline of the neural Turing machine."""

import pytest
import torch
from torch import nn

from qkv.errors import InputError
from qkv.hub import load
from qkv.hub.model_folder import save_model
from qkv.models.memory.lstm_baseline import LSTMBaseline, LSTMBaselineConfig
from qkv.training.recipe import read_recipe


def make() -> LSTMBaseline:
    torch.manual_seed(0)
    return LSTMBaseline(LSTMBaselineConfig(input_dim=3, output_dim=2, hidden_dim=5, layers=2)).eval()


def test_it_matches_a_pytorch_lstm_with_a_linear_layer():
    model, x = make(), torch.randn(2, 7, 3)
    twin = nn.LSTM(3, 5, num_layers=2, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(model.recurrent.layers):
            for name, weight in layer.named_parameters():
                getattr(twin, name.replace("l0", f"l{number}")).copy_(weight)
    torch.testing.assert_close(model(x), model.readout(twin(x)[0]))


def test_a_sequence_can_be_processed_in_chunks():
    model, x = make(), torch.randn(2, 7, 3)
    first, state = model.forward_from(x[:, :3], model.init_state(2))
    torch.testing.assert_close(torch.cat((first, model.forward_from(x[:, 3:], state)[0]), dim=1), model(x))


def test_every_weight_gets_a_gradient():
    model = make()
    model(torch.randn(2, 7, 3)).square().sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_a_saved_network_is_loaded_bit_for_bit(tmp_path):
    model, x = make(), torch.randn(2, 5, 3)
    save_model(model, None, tmp_path)
    assert load(tmp_path)(x).equal(model(x))


def test_recipes_give_lstm_and_ntm_similar_parameter_counts():
    counts = {}
    for name in ("copy-lstm", "copy-ntm-lstm", "copy-ntm"):
        recipe = read_recipe(name)
        model = recipe.model_class(recipe.model)  # the default sizes are those of the copy task
        counts[name] = sum(weight.numel() for weight in model.parameters())
    assert counts["copy-lstm"] == pytest.approx(counts["copy-ntm-lstm"], rel=0.05)
    assert counts["copy-lstm"] > 4 * counts["copy-ntm"]


@pytest.mark.parametrize("wrong", [{"hidden_dim": 0}, {"layers": 1025}, {"hidden_dim": 2**25}])
def test_invalid_configs_raise(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
        LSTMBaselineConfig(**wrong)
