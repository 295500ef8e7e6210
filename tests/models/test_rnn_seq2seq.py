"""The recurrent encoder-decoders against their equations, written out one at a time, in all combinations of options."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qkv
from qkv.attention import SCORES
from qkv.errors import InputError
from qkv.models.rnn_seq2seq import MEANT_FOR, WORDS, Config, RNNSeq2Seq
from qkv.nn.state import select

VOCABULARY = 11
LENGTHS = torch.tensor([7, 4, 1, 0])


def made(**options: object) -> RNNSeq2Seq:
    torch.manual_seed(0)
    sizes = {"embedding": 6, "hidden": 8, "dropout": 0.0, "max_length": 8}
    return RNNSeq2Seq(Config(VOCABULARY, VOCABULARY, **sizes | options)).double().eval()


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(4, VOCABULARY, size, generator=generator) for size in ((4, 7), (4, 5)))


def wirings() -> list[dict[str, object]]:
    """Cells, layers and directions with every way to wire encoder and decoder, but for what attention does."""
    decoders: list[dict[str, object]] = [
        {"attention": "bahdanau"},
        {"attention": "bahdanau", "bridge": "linear", "tie": True, "encoder_hidden": 10},
        {"attention": "luong", "bridge": "none", "reverse": True},
        {"attention": "luong", "input_feeding": False, "tie": True},
        {"attention": "none", "context": "initial", "reverse": True, "bridge": "none"},
        {"attention": "none", "context": "every_step"},
        {"attention": "none", "context": "both", "encoder_hidden": 4},
    ]
    return [
        {"cell": cell, "layers": layers, "bidirectional": layers == 1} | decoder
        for cell, layers, decoder in itertools.product(("gru", "lstm", "rnn"), (1, 2), decoders)
    ]


def readings() -> list[dict[str, object]]:
    """Every score with every alignment, in one after another of the decoders that attend, with coverage and without."""
    decoders: list[dict[str, object]] = [
        {"attention": "bahdanau"},
        {"attention": "luong"},
        {"attention": "luong", "input_feeding": False},
        {"attention": "bahdanau", "coverage": True},
        {"attention": "luong", "coverage": True},
    ]
    found = []
    for number, (score, align) in enumerate(itertools.product(SCORES, WORDS["align"])):
        decoder = decoders[number % (3 if score == "location" else 5)]
        found.append(decoder | {"score": score, "align": align} | ({"window": 2} if "local" in align else {}))
    return found


def words(options: dict[str, object]) -> str:
    return "-".join(f"{value}" if isinstance(value, str) else f"{key}={value}" for key, value in options.items())


every_model = pytest.mark.parametrize("options", [*wirings(), *readings()], ids=words)


@every_model
def test_steps_equal_all_at_once_and_a_sentence_alone_equals_itself_in_a_batch(options, batch):
    source, target = batch
    model = made(**options)
    memory = model.encode(source, LENGTHS)
    at_once = model.decode(target, memory)
    assert at_once.isfinite().all()
    state = model.start(memory)
    for t in range(target.shape[1]):
        if t == 2:  # a beam search goes on with some rows, twice or not at all, in another order
            rows = torch.tensor([2, 0, 0, 3])
            state, target, at_once, source, lengths = (
                select(state, rows), target[rows], at_once[rows], source[rows], LENGTHS[rows]
            )  # fmt: skip
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, at_once[:, t], rtol=0, atol=1e-10)
    for row, length in enumerate(lengths):
        if length > 0:
            alone = model(source[row : row + 1, :length], target[row : row + 1])
            torch.testing.assert_close(alone[0], at_once[row], rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", wirings()[::3], ids=words)
def test_short_numbers_cost_no_more_than_their_rounding(options, batch):
    source, target = batch
    model = made(**options)
    exact = model(source, target, LENGTHS)
    model.float()
    state = model.start(model.encode(source, LENGTHS))
    for t in range(target.shape[1]):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits.double(), exact[:, t], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [*wirings()[::3], *readings()[::4]], ids=words)
def test_gradients_agree_with_finite_differences(options, batch):
    if options.get("align") == "hard":
        pytest.skip("a choice has no slope: what stands in for it is tested with Hard itself")
    source, target = batch
    model = made(**options)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(source, target, LENGTHS).flatten(0, 1), target.flatten())

    loss().backward()
    generator = torch.Generator().manual_seed(3)
    slope, moves = 0.0, []
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        move = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slope += (parameter.grad * move).sum()
        moves.append(move)
    found = []
    with torch.no_grad():
        for distance in (1e-6, -2e-6):
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter += distance * move
            found.append(loss())
    torch.testing.assert_close((found[0] - found[1]) / 2e-6, slope, rtol=1e-6, atol=1e-8)


def gru(layer: nn.GRU, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """r, z, n and h' of a GRU, from the weights of PyTorch's layer."""
    xr, xz, xn = (layer.weight_ih_l0 @ x + layer.bias_ih_l0).chunk(3)
    hr, hz, hn = (layer.weight_hh_l0 @ h + layer.bias_hh_l0).chunk(3)
    reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    return (1 - update) * torch.tanh(xn + reset * hn) + update * h


def read_both_ways(model: RNNSeq2Seq, source: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """h_i and h_n."""
    (layer,) = model.encoder.layers
    x = model.encoder.embed.weight[source]
    ahead, back = [torch.zeros(4).double()], [torch.zeros(4).double()]
    for i in range(len(source)):
        ahead.append(gru(layer.ahead.rnn, x[i], ahead[-1]))
        back.append(gru(layer.back.rnn, x[len(source) - 1 - i], back[-1]))
    h = [torch.cat((ahead[i + 1], back[len(source) - i])) for i in range(len(source))]
    return h, torch.cat((ahead[-1], back[-1]))


def read(weights: torch.Tensor, h: list[torch.Tensor]) -> torch.Tensor:
    return sum(weight * state for weight, state in zip(weights, h, strict=True))


SOURCE, TARGET = torch.tensor([3, 1, 4, 1]), torch.tensor([2, 7, 1])


def test_it_computes_the_equations_of_bahdanau():
    model = made()
    decoder, score = model.decoder, model.decoder.attention.attend.score
    h, last = read_both_ways(model, SOURCE)
    s, logits, seen = torch.tanh(decoder.bridge.project(last)), [], []
    for token in TARGET:
        y = decoder.embed.weight[token]
        e = torch.stack([score.vector[0] @ torch.tanh(s @ score.query_weight[0] + k @ score.key_weight[0]) for k in h])
        seen.append(e.exp() / e.exp().sum())
        c = read(seen[-1], h)
        s = gru(decoder.cells.rnn, torch.cat((y, c)), s)
        logits.append(model.output(torch.tanh(decoder.speak(torch.cat((s, c, y))))))
    with qkv.watch(model) as watched:
        torch.testing.assert_close(model(SOURCE[None], TARGET[None])[0], torch.stack(logits))
    torch.testing.assert_close(watched["decoder"].weights, torch.stack(seen)[None, None])


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("score", ["dot", "bilinear", "concat", "location"])
def test_it_computes_the_equations_of_luong(score, feeding):
    model = made(attention="luong", score=score, input_feeding=feeding)
    decoder, term = model.decoder, model.decoder.attention.attend.score
    scored = {
        "dot": lambda s, k, i: s @ k,
        "bilinear": lambda s, k, i: s @ term.weight[0] @ k,
        "concat": lambda s, k, i: term.vector[0] @ torch.tanh(torch.cat((s, k)) @ term.weight[0]),
        "location": lambda s, k, i: (s @ term.weight[0])[i],
    }[score]
    h, last = read_both_ways(model, SOURCE)
    s, said, logits, seen = torch.tanh(decoder.bridge.project(last)), torch.zeros(8).double(), [], []
    for token in TARGET:
        y = decoder.embed.weight[token]
        s = gru(decoder.cells.rnn, torch.cat((y, said)) if feeding else y, s)
        seen.append(torch.stack([scored(s, k, i) for i, k in enumerate(h)]).softmax(dim=0))
        said = torch.tanh(decoder.speak(torch.cat((s, read(seen[-1], h)))))
        logits.append(model.output(said))
    with qkv.watch(model) as watched:
        torch.testing.assert_close(model(SOURCE[None], TARGET[None])[0], torch.stack(logits))
    torch.testing.assert_close(watched["decoder"].weights, torch.stack(seen)[None, None])


@pytest.mark.parametrize("context", ["initial", "every_step", "both"])
def test_without_attention_it_knows_the_end_of_the_encoder_and_nothing_else(context):
    model = made(attention="none", context=context)
    decoder = model.decoder
    _, last = read_both_ways(model, SOURCE)
    s = torch.zeros(8).double() if context == "every_step" else torch.tanh(decoder.bridge.project(last))
    c = last[:0] if context == "initial" else last
    logits = []
    for token in TARGET:
        y = decoder.embed.weight[token]
        s = gru(decoder.cells.rnn, torch.cat((y, c)), s)
        logits.append(model.output(torch.tanh(decoder.speak(torch.cat((s, y, c))))))
    torch.testing.assert_close(model(SOURCE[None], TARGET[None])[0], torch.stack(logits))
    with pytest.raises(InputError, match="no attention layer"), qkv.watch(model):
        pass


@pytest.mark.parametrize("attention", ["bahdanau", "luong"])
def test_local_m_looks_around_the_time_step_in_every_way_of_decoding(attention, batch):
    source, target = batch
    model = made(attention=attention, align="local_m", window=1)
    near = (torch.arange(7) - torch.arange(5)[:, None]).abs() <= 1
    with qkv.watch(model) as seen:
        model(source[:1], target[:1])
    assert seen["decoder"].weights[0, 0].gt(0).equal(near)
    with qkv.watch(model) as seen:
        state = model.start(model.encode(source[:1]))
        for token in target[:1].unbind(1):
            _, state = model.step(token, state)
    assert seen["decoder"].weights[0, 0].gt(0).equal(near)


@pytest.mark.parametrize("options", readings()[::5], ids=words)
def test_the_weights_that_are_watched_are_those_of_the_reference(options, batch):
    source, target = batch
    model = made(**options)
    with qkv.watch(model) as seen:
        model(source, target, LENGTHS)
    chosen = seen["decoder"].weights
    assert chosen.shape == (4, 1, 5, 7)
    model.decoder.attention.attend.backend = "reference"
    with qkv.watch(model) as seen:
        model(source, target, LENGTHS)
    torch.testing.assert_close(chosen, seen["decoder"].weights)
    assert chosen[:, 0].sum(dim=1)[torch.arange(7) >= LENGTHS[:, None]].eq(0).all()  # nothing is read of padding


@pytest.mark.parametrize("attention", ["none", "bahdanau", "luong"])
def test_reading_in_reverse_equals_being_given_the_reversed_source(attention):
    plain, reversing = made(attention=attention, layers=2), made(attention=attention, layers=2, reverse=True)
    reversing.load_state_dict(plain.state_dict())
    source = torch.tensor([[5, 9, 4, 6, 8], [7, 10, 4, 0, 0]])
    turned = torch.tensor([[8, 6, 4, 9, 5], [4, 10, 7, 0, 0]])
    lengths, target = torch.tensor([5, 3]), torch.tensor([[2, 5], [2, 9]])
    torch.testing.assert_close(reversing(source, target, lengths), plain(turned, target, lengths))
    if attention != "none":  # and what is seen stands where it stands in the sentence
        with qkv.watch(plain) as expected, qkv.watch(reversing) as seen:
            plain(turned, target, lengths)
            reversing(source, target, lengths)
        torch.testing.assert_close(seen["decoder"].weights[0], expected["decoder"].weights[0].flip(-1))
        torch.testing.assert_close(
            seen["decoder"].weights[1, ..., :3], expected["decoder"].weights[1, ..., :3].flip(-1)
        )


@pytest.mark.parametrize("attention", ["none", "bahdanau", "luong"])
def test_scheduled_sampling_feeds_nothing_or_all_of_what_the_model_says(attention, batch):
    source, target = batch
    forced = made(attention=attention)
    expected = forced(source, target)
    never = made(attention=attention, scheduled_sampling=1e-300).train()
    torch.testing.assert_close(never(source, target), expected)

    always = made(attention=attention, scheduled_sampling=1.0)
    state, token, greedy = always.start(always.encode(source)), target[:, 0], []
    for _ in range(target.shape[1]):
        logits, state = always.step(token, state)
        greedy.append(logits)
        token = logits.argmax(dim=-1)
    torch.testing.assert_close(always(source, target), expected)  # in evaluation, the truth is fed all the same
    torch.testing.assert_close(always.train()(source, target), torch.stack(greedy, dim=1))


def test_scheduled_sampling_takes_its_share_of_tokens():
    model = made(attention="none", scheduled_sampling=0.3).train()
    taken: list[torch.Tensor] = []
    model.decoder.embed.register_forward_hook(lambda module, inputs, output: taken.append(inputs[0][:, 0]))
    truth = torch.full((500, 9), VOCABULARY - 1)
    never_the_truth = torch.arange(VOCABULARY) * -100.0
    model.output.register_forward_hook(lambda module, inputs, output: output + never_the_truth)
    with torch.no_grad():
        model(torch.ones(500, 3, dtype=torch.long), truth)
    assert taken[0].eq(VOCABULARY - 1).all()
    own = torch.stack(taken[1:]).ne(VOCABULARY - 1).double().mean()
    assert abs(own - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5


def test_tied_weights_are_one_tensor():
    tied = made(tie=True)
    assert tied.output.weight is tied.decoder.embed.weight
    assert tied.encoder.embed.weight is tied.decoder.embed.weight
    apart = RNNSeq2Seq(Config(9, VOCABULARY, embedding=6, hidden=8, tie=True))
    assert apart.output.weight is apart.decoder.embed.weight
    assert apart.encoder.embed.weight.shape == (9, 6)
    assert made().output.weight is not made().decoder.embed.weight


@pytest.mark.parametrize(("read", "zeros"), [(None, 0.5), (0.0, 0.0), (0.9, 0.9)])
def test_the_states_that_attention_reads_have_a_dropout_of_their_own(read, zeros):
    model = RNNSeq2Seq(Config(9, 8, embedding=6, hidden=64, layers=2, dropout=0.5, read_dropout=read))
    source = torch.randint(4, 9, (32, 8))
    for states, share in ((model.encode(source), zeros), (model.eval().encode(source), 0.0)):
        assert states.source is not None
        assert (states.source.values == 0).double().mean().item() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("estimator", WORDS["estimator"])
def test_hard_attention_reads_one_place_at_each_step_also_while_it_learns(estimator, batch):
    source, target = batch
    model = made(align="hard", estimator=estimator).train()
    with qkv.watch(model) as seen:
        model(source, target, LENGTHS)
    weights = seen["decoder"].weights
    assert weights[:3].sum(dim=-1).eq(1).all()
    assert weights[:3].max(dim=-1).values.eq(1).all()


@pytest.mark.compiled
@pytest.mark.parametrize("attention", ["none", "bahdanau", "luong"])
def test_compiled_it_computes_the_same_forward_and_backward(attention):
    model = made(attention=attention).float()
    inputs = torch.randint(4, 11, (3, 7)), torch.randint(4, 11, (3, 4)), torch.tensor([7, 3, 5])
    compiled = torch.compile(model, backend="aot_eager")  # the compiler leaves nn.GRU to PyTorch: not one graph
    expected, found = (run(*inputs) for run in (model, compiled))
    torch.testing.assert_close(found, expected)
    weights = list(model.parameters())
    slopes = (torch.autograd.grad(logits.sin().sum(), weights) for logits in (expected, found))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


SENSIBLE = {  # for each key that depends on another, a value other than its default
    "context": "both", "score": "dot", "align": "soft", "coverage": True, "input_feeding": False,
    "read_dropout": 0.5, "rank": 2, "window": 3, "estimator": "gumbel",
    "baseline": "learned", "entropy": 0.1, "discount": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", MEANT_FOR)
def test_a_key_without_meaning_is_refused_with_the_way_out(key):
    other, allowed = MEANT_FOR[key]
    value = "sparsemax" if key == "align" else SENSIBLE[key]
    wrong = "none" if other == "attention" and allowed != ("none",) else Config(9, 8).__getattribute__(other)
    with pytest.raises(InputError, match=f"^{key} = .* does not apply with {other} = '{wrong}': omit {key} or"):
        Config(9, 8, **{other: wrong, key: value})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"score": "additiv"}, "did you mean additive"),
        ({"cell": "gur"}, r"cell 'gur' is not known \(did you mean gru\?\)"),
        ({"attention": "no"}, r"attention 'no' is not known"),
        ({"hidden": 7}, "hidden must be even, .* or set bidirectional to false"),
        ({"encoder_hidden": 7}, "encoder_hidden must be even"),
        ({"dropout": 1.0}, "^dropout must lie in"),
        ({"read_dropout": 1.0}, "read_dropout must lie in"),
        ({"scheduled_sampling": 1.5}, "scheduled_sampling must lie in"),
        ({"embedding": 0}, "embedding must lie between"),
        ({"layers": 0}, "layers must lie between"),
        ({"window": 0, "align": "local_p"}, "window must lie between"),
        ({"entropy": -0.1, "align": "hard", "estimator": "reinforce"}, "entropy must be 0 or more, and finite"),
        ({"entropy": math.inf, "align": "hard", "estimator": "reinforce"}, "entropy must be 0 or more, and finite"),
        ({"discount": 1.5, "align": "hard", "estimator": "reinforce"}, r"discount must lie in \[0, 1\]"),
        ({"layers": 1024, "hidden": 2**24}, r"layers \* hidden must not be more than 2\^24"),
        ({"layers": 1024, "encoder_hidden": 2**24}, r"layers \* encoder_hidden must not be more than 2\^24"),
        ({"source_size": 10**12}, "source_size must lie between"),
        ({"encoder_hidden": 64, "bridge": "none"}, "bridge = 'none' .* encoder_hidden = 64 differ: set bridge to"),
        ({"encoder_hidden": 64, "score": "dot"}, "score = 'dot' .* encoder_hidden = 64 differ: set score to bilinear"),
        ({"coverage": True, "score": "location"}, "coverage marks the keys, .* set score to"),
        ({"coverage": True, "attention": "luong", "input_feeding": False}, "coverage .* input_feeding = false"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        Config(**{"source_size": 9, "target_size": 8} | wrong)


@pytest.mark.parametrize("sizes", [{"layers": 1, "hidden": 2**24}, {"layers": 1024, "hidden": 2**14}], ids=str)
def test_the_largest_config_there_is_can_be_looked_at_without_memory(sizes):
    with torch.device("meta"):
        model = RNNSeq2Seq(Config(9, 8, cell="lstm", encoder_hidden=2**24 // sizes["layers"], **sizes))
    assert model.decoder.bridge.project.weight.shape == (2**25, 2**24)
