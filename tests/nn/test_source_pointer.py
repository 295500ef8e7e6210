"""The pointer to the next source word: the equation as a loop, steps against one pass, and gradients."""

import pytest
import torch

from qkv.errors import InputError
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.nn.source_pointer import SourcePointer

CONSUMING = (4, 5)
STARTS = torch.tensor([[0, 2, 3, 5, 5], [0, 1, 1, 1, 1]])  # first token of each word, then the last token
TOKENS = torch.tensor([[2, 4, 6, 5, 4, 4], [2, 6, 6, 4, 4, 4]])


def test_the_encoder_state_of_the_next_word_is_added():
    torch.manual_seed(0)
    pointer = SourcePointer(CONSUMING, 8, 3, 4)
    values, x = torch.randn(2, 6, 3), torch.randn(2, 6, 4)
    output, state = pointer(x, TOKENS, pointer.init_state(values, STARTS))
    for row in range(2):
        words = 0
        for step, token in enumerate(TOKENS[row].tolist()):
            words += token in CONSUMING
            position = STARTS[row, min(words, 4)]
            expected = x[row, step] + pointer.proj.weight @ values[row, position]
            torch.testing.assert_close(output[row, step], expected)
    assert state.consumed.tolist() == [4, 3]


def models():
    torch.manual_seed(0)
    shared = {"source_vocab_size": 9, "target_vocab_size": 9, "pointer": True, "consuming_tokens": CONSUMING}
    sizes = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn_dim": 8}
    yield Transformer(TransformerConfig(**shared, **sizes))
    for decoder in ("bahdanau", "luong"):
        yield RNNSeq2Seq(RNNSeq2SeqConfig(**shared, embedding_dim=6, hidden_dim=8, decoder=decoder))


@pytest.mark.parametrize("model", [*models()], ids=lambda model: type(model).__name__)
def test_steps_equal_one_pass_and_all_weights_have_a_gradient(model):
    source, lengths = torch.randint(4, 9, (2, 6)), torch.tensor([6, 2])
    model.eval()
    logits = model(source, TOKENS, lengths, word_starts=STARTS)
    state = model.init_state(model.encode(source, lengths, word_starts=STARTS))
    for step in range(TOKENS.shape[1]):
        step_logits, state = model.step(TOKENS[:, step], state)
        torch.testing.assert_close(step_logits, logits[:, step], atol=1e-5, rtol=1e-5)
    logits.square().sum().backward()
    assert model.pointer.proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("token", [-1, 8])
def test_tokens_outside_the_vocabulary_are_rejected(token):
    with pytest.raises(InputError, match="vocabulary"):
        SourcePointer([4, token], 8, 3, 4)
