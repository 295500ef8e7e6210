"""The recorded operands of attention: equal to what the operator computes, for all kinds of terms."""

from typing import Any

import numpy as np
import pytest
import torch

from qkv.attention import Attend, attend
from qkv.attention.layers import attention_layers
from qkv.interpret import attention_probe
from qkv.interpret.attention_probe import AttentionProbe
from qkv.interpret.operator_record import HeadOperator, record_operator
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.lstmn import LSTMN, LSTMNConfig
from qkv.tokenizers import CharTokenizer

TEXT = "a small cat"
TOKENIZER = CharTokenizer.train([TEXT])
SIZES: dict[str, Any] = {"vocab_size": len(TOKENIZER), "dim": 16, "heads": 4, "layers": 2, "max_length": 32}
MODELS = {
    "gpt2": lambda: GPT2(GPT2Config(**SIZES)),
    "grouped rotary": lambda: Llama(LlamaConfig(**SIZES, kv_heads=2)),
    "alibi": lambda: Llama(LlamaConfig(**SIZES, position="alibi")),
    "relative": lambda: Llama(LlamaConfig(**SIZES, position="relative")),
    "additive": lambda: GPT2(GPT2Config(**SIZES, score="additive")),
}


def recorded(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], tuple[HeadOperator, ...]]:
    """Return the outputs of the layers' operators, and the recorded heads."""
    layers, outputs = attention_layers(model), dict[str, torch.Tensor]()
    hooks = [
        layer.register_forward_hook(lambda module, arguments, result, name=name: outputs.update({name: result.output}))
        for name, layer in layers.items()
    ]
    with torch.no_grad(), record_operator(layers, [*layers]) as recording:
        model(torch.tensor([TOKENIZER.encode(TEXT)]))
    for hook in hooks:
        hook.remove()
    assert all(layer.watchers == () for layer in layers.values())
    return outputs, recording.heads(10**6)


@pytest.mark.parametrize("kind", MODELS)
def test_recorded_outputs_are_those_of_the_operator(kind: str) -> None:
    torch.manual_seed(1)
    outputs, heads = recorded(MODELS[kind]().eval())
    assert len(heads) == 8
    for each in heads:
        expected = outputs[each.layer][0, each.head]
        np.testing.assert_allclose(each.output, expected, atol=1e-5)
        assert each.adds_to_output == (kind == "relative")
        if not each.adds_to_output:
            np.testing.assert_allclose(each.weights @ each.value, expected, atol=1e-5)
        masked = np.where(each.allowed, each.scores, -np.inf)
        np.testing.assert_allclose(each.weights, torch.tensor(masked).softmax(dim=-1), atol=1e-5)
        assert (each.scale is None) == (kind == "additive")
        if each.scale is not None and not each.biased:
            np.testing.assert_allclose(each.scale * each.query @ each.key.T, each.scores, atol=1e-5)
    assert heads[0].score == ("v . tanh(W q + U k)" if kind == "additive" else "q . k / sqrt(d)")


def test_heads_beyond_the_limit_and_recurrent_layers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = MODELS["gpt2"]().eval()
    numbers = 2 * len(TEXT) * (4 + 4) + 3 * len(TEXT) ** 2
    monkeypatch.setattr(attention_probe, "MAX_OPERANDS", 2 * 3 * numbers)
    first, second = AttentionProbe(model, TOKENIZER)([TEXT, TEXT])
    assert len(first.operators) == len(second.operators) == 3
    lstmn = LSTMN(LSTMNConfig(vocab_size=len(TOKENIZER), embedding_dim=8, hidden_dim=8)).eval()
    assert AttentionProbe(lstmn, TOKENIZER)(TEXT).operators == ()


def test_recording_does_not_change_the_result() -> None:
    torch.manual_seed(1)
    layer, inputs = Attend().eval(), [torch.randn(1, 2, 5, 4) for _ in range(3)]
    with record_operator({"layer": layer}, ["layer"]) as recording:
        output = layer(*inputs).output
    torch.testing.assert_close(output, attend(*inputs).output)
    assert [head.head for head in recording.heads(10**4)] == [0, 1]
