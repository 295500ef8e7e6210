"""The contract of every registered model: gradients, learning, saving, padding, steps and attention weights."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import qkv
from qkv.attention.layers import attention_layers
from qkv.errors import InputError
from qkv.hub import load, save_model
from qkv.nn.interfaces import Decoder, LanguageModel, SequenceModel
from qkv.registry import registered
from qkv.runtime.device import autocast
from tests.models.contract import CASES, GOLDEN, ROWS, VOCABULARY, Case

PADDED = [name for name, case in CASES.items() if case.batch().lengths is not None]
STEPWISE = [name for name, model in registered("model").items() if issubclass(model, Decoder | LanguageModel)]
CHUNKED = [name for name, model in registered("model").items() if issubclass(model, LanguageModel | SequenceModel)]

every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def cases(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [CASES[name] for name in names], ids=names)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_every_registered_model_has_a_case_and_a_golden_loss():
    assert CASES.keys() == registered("model").keys() == GOLDEN.keys()


@every_model
def test_gradients_are_finite_and_reach_every_parameter(case: Case):
    model, batch = case.build().train(), case.batch()
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for parameter in trainable.values():
        torch.nn.init.normal_(parameter, std=0.3)  # layers that begin at zero pass on no gradient
    case.loss(case.logits(model, batch), batch.targets).backward()
    for name, parameter in trainable.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_model
def test_a_step_in_bfloat16_is_close_to_one_in_float32(case: Case):
    """On the CPU, too: the trainer chooses bfloat16 if it is faster."""
    losses, gradients = [], []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model, batch = case.build().eval(), case.batch()
        with autocast(torch.device("cpu"), precision):
            loss = case.loss(case.logits(model, batch), batch.targets)
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert F.cosine_similarity(*gradients, dim=0) > 0.99


@every_model
def test_the_loss_after_20_steps_is_unchanged(case: Case):
    assert case.train(case.build(), 20) == pytest.approx(GOLDEN[case.model], rel=1e-4)


@every_model
def test_it_overfits_eight_examples(case: Case):
    model, batch = case.build(), case.batch()
    assert case.train(model, case.steps, until=0.01) < 0.01
    assert case.predict(case.logits(model.eval(), batch)).equal(batch.targets)


@every_model
def test_saved_models_are_loaded_with_equal_outputs(case: Case, tmp_path: Path):
    model = case.build().eval()
    save_model(model, None, tmp_path)
    loaded = load(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert case.logits(loaded, case.batch()).equal(case.logits(model, case.batch()))


@every_model
def test_a_row_is_independent_of_its_batch_and_padding(case: Case):
    model, batch = case.build().eval(), case.batch()
    together = case.logits(model, batch)
    for index in range(ROWS):
        assert_close(case.logits(model, batch.row(index))[0], together[index])


@cases(PADDED)
def test_the_content_of_padding_does_not_matter(case: Case):
    model, batch = case.build().eval(), case.batch()
    assert case.logits(model, batch.with_other_padding()).equal(case.logits(model, batch))


@cases(STEPWISE)
def test_steps_equal_decoding_at_once(case: Case):
    model, batch = case.build().eval(), case.batch()
    *source, target = batch.inputs
    if isinstance(model, Decoder):
        memory = model.encode(*source) if batch.lengths is None else model.encode(*source, batch.lengths)
        state, expected = model.init_state(memory), model.decode(target, memory)
    else:
        state, expected = model.init_state(ROWS), model(target)
    for position, token in enumerate(target.unbind(1)):
        logits, state = model.step(token, state)
        assert_close(logits, expected[:, position])


@cases(CHUNKED)
def test_chunks_equal_the_sequence_at_once(case: Case):
    model, (x,) = case.build().eval(), case.batch().inputs
    first, state = model.forward_from(x[:, :2], model.init_state(ROWS))
    second, _ = model.forward_from(x[:, 2:], state)
    assert_close(torch.cat((first, second), dim=1), model(x))


@cases(STEPWISE)
def test_no_logit_depends_on_a_later_token(case: Case):
    model, batch = case.build().eval(), case.batch()
    before = case.logits(model, batch)
    batch.inputs[-1][:, 3:] = (batch.inputs[-1][:, 3:] + 1) % VOCABULARY
    after = case.logits(model, batch)
    assert_close(after[:, :3], before[:, :3])
    assert not after[:, 3:].allclose(before[:, 3:])


@every_model
def test_watched_weights_equal_those_of_the_reference(case: Case):
    model, batch = case.build().eval(), case.batch()
    if not case.attention:
        with pytest.raises(InputError, match="attention"), qkv.watch(model):
            pass
        return
    expected_output = case.logits(model, batch)
    with qkv.watch(model) as recorded:
        output = case.logits(model, batch)
    assert output.equal(expected_output)
    for layer in attention_layers(model).values():
        layer.backend = "reference"
    with qkv.watch(model) as expected:
        assert_close(case.logits(model, batch), output)
    assert recorded.keys() == expected.keys() == attention_layers(model).keys()
    for layer in recorded:
        assert_close(recorded[layer].weights, expected[layer].weights)
        totals = recorded[layer].weights.sum(dim=-1)
        assert_close(totals, totals.gt(0).float())  # 1, or 0 for a query without keys
