"""Alignments between tokens, between words, and in Pharaoh format."""

from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import InputError
from qkv.pipelines.output import Answer, AttentionMap
from tests.tasks.settings import tokenizer_of


def attention(rows: tuple[str, ...], columns: tuple[str, ...], heads: int = 1, seed: int = 0) -> AttentionMap:
    weights = np.random.default_rng(seed).random((heads, len(rows), len(columns))) + 0.01
    return AttentionMap("decoder", rows, columns, weights / weights.sum(-1, keepdims=True))


def test_by_words_sums_over_columns_and_averages_over_rows():
    rows, columns = (" Zw", "ei", " Hunde"), (" two", " do", "gs", ".")
    first = [[0.7, 0.1, 0.1, 0.1], [0.5, 0.3, 0.2, 0.0], [0.0, 0.6, 0.3, 0.1]]
    second = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.2, 0.1, 0.4], [0.25, 0.25, 0.25, 0.25]]
    by_words = AttentionMap("decoder", rows, columns, np.array([first, second])).by_words("Zwei Hunde", "two dogs.")
    assert (by_words.layer, by_words.rows, by_words.columns) == ("decoder", ("Zwei", "Hunde"), ("two", "dogs."))
    np.testing.assert_allclose(by_words.weights, [[[0.6, 0.4], [0.0, 1.0]], [[0.2, 0.8], [0.25, 0.75]]])
    np.testing.assert_allclose(by_words.average, [[0.4, 0.6], [0.125, 0.875]])


TEXTS = ["Ein Mann, der läuft.", "zwei  Hunde im Schnee", "a", "Übung <s> macht «den» Meister !", "née à l'été"]


@pytest.mark.parametrize("kind", [("char",), ("word",), ("bpe", 40), ("bpe", 90)], ids=str)
@pytest.mark.parametrize("lowercase", [False, True])
def test_words_are_those_of_the_text_for_any_tokenization(kind, lowercase):
    tokenizer = tokenizer_of(TEXTS, *kind, lowercase=lowercase)
    for input_text in TEXTS:
        (source,) = tokenizer.encode_with_offsets([input_text])
        for target in TEXTS:
            tokens = tokenizer.encode(target)
            output_text = tokenizer.decode(tokens)
            pieces = tuple(tokenizer.piece(token) for token in tokens)
            by_words = attention(pieces, source.pieces, heads=2).by_words(output_text, input_text)
            assert (by_words.rows, by_words.columns) == (tuple(output_text.split()), tuple(input_text.split()))
            np.testing.assert_allclose(by_words.weights.sum(-1), 1.0)  # each source word gets all of its pieces
            identity = AttentionMap("self", source.pieces, source.pieces, np.eye(len(source.pieces))[None])
            np.testing.assert_allclose(
                identity.by_words(input_text, input_text).average, np.eye(len(input_text.split()))
            )


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.text("abé.", min_size=1, max_size=6), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 3), min_size=40, max_size=40),
    gap=st.sampled_from([" ", "  ", "\t"]),
)
def test_arbitrary_pieces_are_assigned_to_their_words(words, cuts, gap):
    pieces, owner = [], []
    for number, word in enumerate(words):
        rest, first = word, True
        while rest:
            size = cuts[len(pieces) % len(cuts)]
            pieces.append((gap if first and number else "") + rest[:size])
            owner.append(number)
            rest, first = rest[size:], False
    text = gap.join(words)
    by_words = AttentionMap("self", tuple(pieces), tuple(pieces), np.eye(len(pieces))[None]).by_words(text, text)
    np.testing.assert_allclose(by_words.average, np.eye(len(words)))
    links = AttentionMap("self", ("x",), tuple(pieces), np.eye(len(pieces))[None, -1:]).by_words("x", text).pharaoh()
    assert links == f"{owner[-1]}-0"


def parse(pharaoh: str) -> list[tuple[int, int]]:
    return [tuple(int(index) for index in pair.split("-")) for pair in pharaoh.split()]


@pytest.mark.parametrize("seed", range(5))
def test_pharaoh_pairs_are_the_best_column_of_each_row(seed):
    attention_map = attention(("a", "b", "c", "d"), ("x", "y", "z"), heads=3, seed=seed)
    expected = [(max(range(3), key=lambda column: attention_map.average[row][column]), row) for row in range(4)]
    assert parse(attention_map.pharaoh()) == expected
    for threshold in (0.05, 0.3, 0.5, 1.0):
        every = [(c, r) for r in range(4) for c in range(3) if attention_map.average[r, c] >= threshold]
        assert parse(attention_map.pharaoh(threshold)) == every


def test_rows_of_zeros_have_no_pair_and_ties_go_to_the_first_column():
    weights = np.array([[[0.5, 0.5], [0.0, 0.0], [0.0, 1.0]]])
    assert AttentionMap("decoder", ("a", "b", "c"), ("x", "y"), weights).pharaoh() == "0-0 1-2"


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.01, float("nan")])
def test_an_invalid_threshold_is_an_error(threshold):
    with pytest.raises(InputError, match="threshold"):
        attention(("a",), ("x",)).pharaoh(threshold)


def test_an_empty_answer_has_an_empty_alignment():
    for text, rows in (("", ()), (" ", (" ",))):
        answer = Answer(
            "x y", text, -1.0, (AttentionMap("decoder", rows, ("x", " y"), np.ones((1, len(rows), 2)) / 2),)
        )
        assert answer.words().weights.shape == (1, 0, 2)
        assert answer.words().pharaoh() == ""
        assert answer.words().columns == ("x", "y")


def test_words_of_an_answer_without_attention_is_an_error():
    answer = Answer("x", "y", -1.0)
    assert answer.alignment is None
    with pytest.raises(InputError, match="no attention"):
        answer.words()


class Table(HTMLParser):
    """The words and the shades of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.shades: list[float] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "td":
            self.shades.append(float(dict(attributes)["style"].rstrip(")").rpartition(", ")[2]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and (self.open[-1] == "th" or self.open[-2:] == ["th", "span"]):
            self.words.append(data)


def test_notebook_html_is_escaped():
    attention_map = attention(("<b>", " &c"), ("x", "</td>", " "), heads=2)
    table = Table(Answer("<i>x", "<script>", -1.0, (attention_map,))._repr_html_())
    assert table.words == ["x", "</td>", "␣", "<b>", "␣&c"]
    assert not table.open
    average = attention_map.average.flatten()
    np.testing.assert_allclose(table.shades, average / average.max(), atol=6e-4)  # the darkest is the largest
    assert "&lt;i&gt;x → <b>a&lt;b</b>" in Answer("<i>x", "a<b", -1.0)._repr_html_()


def test_a_long_alignment_is_shown_by_words():
    text = " ".join(["abc"] * 40)
    table = Table(Answer(text, text, -1.0, (attention(tuple(text), tuple(text)),))._repr_html_())
    assert table.words == ["abc"] * 80
    assert len(table.shades) == 40 * 40
