"""Checks of the terms of a call of the operator."""

import pytest

from qkv.attention import Dot, Entmax, Softmax
from qkv.attention.spec import check_terms
from qkv.errors import InputError


def test_the_name_of_a_term_and_its_class_are_not_the_term_but_named():
    with pytest.raises(InputError, match="Cosine"):
        check_terms("cosine", None, None, Softmax(), None)
    with pytest.raises(InputError, match="Entmax"):
        check_terms(Dot(), None, None, Entmax, None)
