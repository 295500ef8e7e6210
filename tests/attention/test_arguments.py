"""Wrong arguments of `attend`: the error names what to pass."""

import numpy as np
import pytest
import torch

from qkv.attention import Causal, Dense, Entmax, Keys, Padding, Sinusoidal, ablate, attend, explain, watch
from qkv.errors import InputError, KeywordError, ShapeError

pytestmark = pytest.mark.usefixtures("unchecked")
QUERY, KEY = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
PADDING = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("attn_mask", "mask"),
        ("is_causal", "mask=Causal()"),
        ("dropout_p", "dropout"),
        ("scale", "score=ScaledDot(scale)"),
        ("key_padding_mask", "mask=Padding(lengths)"),
        ("need_weight", "need_weights"),
    ],
)
@pytest.mark.parametrize("function", [attend, explain])
def test_an_unexpected_keyword_argument_names_the_right_one(function, wrong, right):
    with pytest.raises(TypeError) as caught:
        function(QUERY, KEY, KEY, **{wrong: None})
    assert isinstance(caught.value, InputError)
    assert str(caught.value) == f"unexpected keyword argument {wrong!r} (did you mean {right}?)"


def test_arrays_and_lists_are_not_tensors():
    with pytest.raises(InputError, match=r"torch\.from_numpy\(query\)"):
        attend(np.zeros((2, 3, 5, 4), dtype=np.float32), KEY, KEY)
    with pytest.raises(InputError, match="value must be a tensor, not a list"):
        attend(QUERY, KEY, [KEY])
    assert attend(QUERY, Keys(KEY), KEY).output.shape == (2, 3, 5, 4)


def test_a_padding_mask_without_heads_and_queries_says_how_to_pass_it():
    for mask in (PADDING, Causal() & PADDING, PADDING.long()):
        with pytest.raises(ShapeError, match=r"\[:, None, None, :\]") as caught:
            attend(QUERY, KEY, KEY, mask=mask)
        assert "Dense" not in str(caught.value)
    as_written = attend(QUERY, KEY, KEY, mask=PADDING[:, None, None, :]).output
    assert torch.equal(as_written, attend(QUERY, KEY, KEY, mask=Dense(PADDING[:, None, None, :])).output)
    torch.testing.assert_close(as_written, attend(QUERY, KEY, KEY, mask=Padding(torch.tensor([7, 4]))).output)


def test_a_mask_of_another_shape_is_an_error_with_both_shapes():
    with pytest.raises(ShapeError, match=r"\[3, 7\].*\[5, 7\]") as caught:
        attend(QUERY, KEY, KEY, mask=torch.ones(3, 7, dtype=torch.bool))
    assert "Dense" not in str(caught.value)
    assert "padding" not in str(caught.value)
    with pytest.raises(ShapeError, match=r"\[4, 1, 5, 7\].*\[2, 3, 5, 7\]"):
        attend(QUERY, KEY, KEY, mask=torch.ones(4, 1, 5, 7, dtype=torch.bool))


def test_functions_of_models_name_themselves_and_their_arguments():
    with pytest.raises(InputError, match=r"ablate takes a torch\.nn\.Module"):
        ablate(5, 0, [0])
    with pytest.raises(KeywordError, match=r"did you mean heads\?"), watch(torch.nn.Linear(2, 2), head=[0]):
        pass


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"mask": torch.zeros(3, 3)}, "mask == 0"),
        ({"mask": "causal"}, r"Causal\(...\)"),
        ({"position": "rotary"}, r"Rotary\(...\)"),
        *(({"position": position}, "embeddings$") for position in (Sinusoidal(4), Sinusoidal, "sinusoidal")),
        ({"score": Entmax()}, "not an Entmax"),
        ({"mask": 3}, "not an int"),
        ({"query": torch.ones(1, 3, 4)}, r"\[:, None\]"),
        ({name: torch.ones(1, 2, 3, 4, dtype=torch.long) for name in ("query", "key", "value")}, "floating-point"),
    ],
)
def test_what_attend_cannot_take_is_explained(arguments, hint):
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises((InputError, ShapeError), match=hint):
        attend(**{"query": x, "key": x, "value": x, **arguments})


def test_a_name_of_a_term_suggests_the_class():
    for score, words in {"dto": r"attention\.Dot", "nonsense": "known: Additive", "dot": r"attention\.Dot"}.items():
        with pytest.raises(InputError, match=words):
            attend(QUERY, KEY, KEY, score=score)
    with pytest.raises(InputError, match=r"attention\.Causal"):
        attend(QUERY, KEY, KEY, mask="causl")
    with pytest.raises(InputError, match=r"subclass of qkv\.attention\.Score"):
        attend(QUERY, KEY, KEY, score=lambda query, key: query @ key.mT)
