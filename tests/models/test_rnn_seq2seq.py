"""Recurrent encoder-decoders against their equations, for all combinations of options."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qkv
from qkv.config import build, describe_fields
from qkv.errors import InputError
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.nn.interfaces import select
from qkv.registry import registered

VOCABULARY = 11
LENGTHS = torch.tensor([7, 4, 1, 0])


def make_model(**options: object) -> RNNSeq2Seq:
    torch.manual_seed(0)
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "embedding_dim": 6, "hidden_dim": 8}
    config = RNNSeq2SeqConfig(**sizes | {"dropout": 0.0, "max_length": 8} | options)
    return RNNSeq2Seq(config).double().eval()


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(4, VOCABULARY, size, generator=generator) for size in ((4, 7), (4, 5)))


def architectures() -> list[dict[str, object]]:
    """Cells, layers and directions with every combination of encoder and decoder options except attention."""
    decoders: list[tuple[dict[str, object], dict[str, object]]] = [  # of the model, and of its encoder
        ({"decoder": "bahdanau"}, {}),
        ({"decoder": "bahdanau", "bridge": "linear", "tie_embeddings": True}, {"dim": 10}),
        ({"decoder": "luong", "bridge": "none"}, {"reverse": True}),
        ({"decoder": "luong", "input_feeding": False, "tie_embeddings": True}, {}),
        ({"decoder": "plain", "context": "initial", "bridge": "none"}, {"reverse": True}),
        ({"decoder": "plain", "context": "every_step"}, {}),
        ({"decoder": "plain", "context": "both"}, {"dim": 4}),
    ]
    recurrent = [
        {"cell": cell, "layers": layers, "encoder": {"name": "rnn", "bidirectional": layers == 1, **encoder}} | decoder
        for cell, layers, (decoder, encoder) in itertools.product(("gru", "lstm", "rnn"), (1, 2), decoders)
    ]
    others = [
        {"layers": layers, "encoder": {"name": name, **options}, "decoder": decoder}
        for name, options in (("conv", {"kernel": 2, "hidden_dim": 6}), ("transformer", {"heads": 2, "dim": 4}))
        for layers, decoder in ((1, "bahdanau"), (2, "luong"), (2, "plain"))
    ]
    return recurrent + others


def attentions() -> list[dict[str, object]]:
    """Every score with every alignment, cycling through the attention decoders, with and without coverage."""
    decoders: list[dict[str, object]] = [
        {"decoder": "bahdanau"},
        {"decoder": "luong"},
        {"decoder": "luong", "input_feeding": False},
        {"decoder": "bahdanau", "coverage": True},
        {"decoder": "luong", "coverage": True},
    ]
    actual = []
    for number, (score, align) in enumerate(itertools.product(registered("score"), registered("align"))):
        decoder = decoders[number % (3 if score == "location" else 5)]
        actual.append(
            decoder | {"score": score, "align": {"name": align, **({"window": 2} if "local" in align else {})}}
        )
    return actual


def option_id(options: dict[str, object]) -> str:
    words = []
    for key, value in options.items():
        nested = value.items() if isinstance(value, dict) else [(key, value)]
        words += [f"{item}" if isinstance(item, str) else f"{name}={item}" for name, item in nested]
    return "-".join(words)


every_model = pytest.mark.parametrize("options", [*architectures(), *attentions()], ids=option_id)


@every_model
def test_steps_and_single_sentences_match_the_batch(options, batch):
    source, target = batch
    model = make_model(**options)
    memory = model.encode(source, LENGTHS)
    at_once = model.decode(target, memory)
    assert at_once.isfinite().all()
    state = model.init_state(memory)
    for t in range(target.shape[1]):
        if t == 2:  # as in beam search: repeat, drop and reorder rows
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


@pytest.mark.parametrize("options", architectures()[::3], ids=option_id)
def test_float32_matches_float64_up_to_rounding(options, batch):
    source, target = batch
    model = make_model(**options)
    exact = model(source, target, LENGTHS)
    model.float()
    state = model.init_state(model.encode(source, LENGTHS))
    for t in range(target.shape[1]):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits.double(), exact[:, t], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [*architectures()[::3], *attentions()[::4]], ids=option_id)
def test_gradients_match_finite_differences(options, batch):
    if options.get("align", {}).get("name") == "hard":
        pytest.skip("hard attention is not differentiable; its estimators are tested with Hard")
    source, target = batch
    model = make_model(**options)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(source, target, LENGTHS).flatten(0, 1), target.flatten())

    loss().backward()
    generator = torch.Generator().manual_seed(3)
    grad, directions = 0.0, []
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        grad += (parameter.grad * direction).sum()
        directions.append(direction)
    actual = []
    with torch.no_grad():
        for distance in (1e-6, -2e-6):
            for parameter, direction in zip(model.parameters(), directions, strict=True):
                parameter += distance * direction
            actual.append(loss())
    torch.testing.assert_close((actual[0] - actual[1]) / 2e-6, grad, rtol=1e-6, atol=1e-8)


def gru(layer: nn.GRU, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """r, z, n and h' of a GRU, from the weights of PyTorch's layer."""
    xr, xz, xn = (layer.weight_ih_l0 @ x + layer.bias_ih_l0).chunk(3)
    hr, hz, hn = (layer.weight_hh_l0 @ h + layer.bias_hh_l0).chunk(3)
    reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    return (1 - update) * torch.tanh(xn + reset * hn) + update * h


def encode_reference(model: RNNSeq2Seq, source: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """h_i and h_final."""
    (layer,) = model.encoder.layers
    x = model.encoder.embed.weight[source]
    forward, backward = [torch.zeros(4).double()], [torch.zeros(4).double()]
    for i in range(len(source)):
        forward.append(gru(layer.forward_rnn.rnn, x[i], forward[-1]))
        backward.append(gru(layer.backward_rnn.rnn, x[len(source) - 1 - i], backward[-1]))
    h = [torch.cat((forward[i + 1], backward[len(source) - i])) for i in range(len(source))]
    return h, torch.cat((forward[-1], backward[-1]))


def weighted_sum(weights: torch.Tensor, h: list[torch.Tensor]) -> torch.Tensor:
    return sum(weight * state for weight, state in zip(weights, h, strict=True))


SOURCE, TARGET = torch.tensor([3, 1, 4, 1]), torch.tensor([2, 7, 1])


def test_bahdanau_attention_matches_its_equations():
    model = make_model()
    decoder, score = model.decoder, model.decoder.attention.attend.score
    h, last = encode_reference(model, SOURCE)
    s, logits, seen = torch.tanh(decoder.bridge.project(last)), [], []
    for token in TARGET:
        y = decoder.embed.weight[token]
        e = torch.stack([score.vector[0] @ torch.tanh(s @ score.query_weight[0] + k @ score.key_weight[0]) for k in h])
        seen.append(e.exp() / e.exp().sum())
        c = weighted_sum(seen[-1], h)
        s = gru(decoder.rnn.rnn, torch.cat((y, c)), s)
        logits.append(model.readout(torch.tanh(decoder.pre_output(torch.cat((s, c, y))))))
    with qkv.watch(model) as watched:
        torch.testing.assert_close(model(SOURCE[None], TARGET[None])[0], torch.stack(logits))
    torch.testing.assert_close(watched["decoder"].weights, torch.stack(seen)[None, None])


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("score", ["dot", "bilinear", "concat", "location"])
def test_luong_attention_matches_its_equations(score, feeding):
    model = make_model(decoder="luong", score=score, input_feeding=feeding)
    decoder, term = model.decoder, model.decoder.attention.attend.score
    scored = {
        "dot": lambda s, k, i: s @ k,
        "bilinear": lambda s, k, i: s @ term.weight[0] @ k,
        "concat": lambda s, k, i: term.vector[0] @ torch.tanh(torch.cat((s, k)) @ term.weight[0]),
        "location": lambda s, k, i: (s @ term.weight[0])[i],
    }[score]
    h, last = encode_reference(model, SOURCE)
    s, attentional_state, logits, seen = torch.tanh(decoder.bridge.project(last)), torch.zeros(8).double(), [], []
    for token in TARGET:
        y = decoder.embed.weight[token]
        s = gru(decoder.rnn.rnn, torch.cat((y, attentional_state)) if feeding else y, s)
        seen.append(torch.stack([scored(s, k, i) for i, k in enumerate(h)]).softmax(dim=0))
        attentional_state = torch.tanh(decoder.pre_output(torch.cat((s, weighted_sum(seen[-1], h)))))
        logits.append(model.readout(attentional_state))
    with qkv.watch(model) as watched:
        torch.testing.assert_close(model(SOURCE[None], TARGET[None])[0], torch.stack(logits))
    torch.testing.assert_close(watched["decoder"].weights, torch.stack(seen)[None, None])


@pytest.mark.parametrize("bridge", ["none", "linear", "tanh"])
@pytest.mark.parametrize("context", ["initial", "every_step", "both"])
def test_without_attention_it_matches_its_equations(context, bridge):
    model = make_model(decoder="plain", context=context, bridge=bridge)
    decoder = model.decoder
    _, last = encode_reference(model, SOURCE)
    if context == "every_step":  # c is the input of every step only
        s = torch.zeros(8).double()
    elif bridge == "none":  # c is the initial state itself
        s = last
    else:
        s = decoder.bridge.project(last)
        s = torch.tanh(s) if bridge == "tanh" else s
    c = last[:0] if context == "initial" else last
    logits = []
    for token in TARGET:
        y = decoder.embed.weight[token]
        s = gru(decoder.rnn.rnn, torch.cat((y, c)), s)
        logits.append(model.readout(torch.tanh(decoder.pre_output(torch.cat((s, y, c))))))
    torch.testing.assert_close(model(SOURCE[None], TARGET[None])[0], torch.stack(logits))
    with pytest.raises(InputError, match="no attention layer"), qkv.watch(model):
        pass


@pytest.mark.parametrize("decoder", ["bahdanau", "luong"])
def test_local_m_attends_around_the_time_step_in_any_decoding_mode(decoder, batch):
    source, target = batch
    model = make_model(decoder=decoder, align={"name": "local_m", "window": 1})
    near = (torch.arange(7) - torch.arange(5)[:, None]).abs() <= 1
    with qkv.watch(model) as seen:
        model(source[:1], target[:1])
    assert seen["decoder"].weights[0, 0].gt(0).equal(near)
    with qkv.watch(model) as seen:
        state = model.init_state(model.encode(source[:1]))
        for token in target[:1].unbind(1):
            _, state = model.step(token, state)
    assert seen["decoder"].weights[0, 0].gt(0).equal(near)


@pytest.mark.parametrize("options", attentions()[::5], ids=option_id)
def test_watched_weights_match_the_reference_backend(options, batch):
    source, target = batch
    model = make_model(**options)
    with qkv.watch(model) as seen:
        model(source, target, LENGTHS)
    chosen = seen["decoder"].weights
    assert chosen.shape == (4, 1, 5, 7)
    reference = make_model(**options, backend="reference")
    assert reference.decoder.attention.attend.backend == "reference"
    with qkv.watch(reference) as seen:
        reference(source, target, LENGTHS)
    torch.testing.assert_close(chosen, seen["decoder"].weights)
    assert chosen[:, 0].sum(dim=1)[torch.arange(7) >= LENGTHS[:, None]].eq(0).all()  # no weight on padding


@pytest.mark.parametrize("decoder", ["plain", "bahdanau", "luong"])
def test_reverse_equals_a_reversed_source(decoder):
    plain, reversing = (
        make_model(decoder=decoder, layers=2),
        make_model(decoder=decoder, layers=2, encoder={"name": "rnn", "reverse": True}),
    )
    reversing.load_state_dict(plain.state_dict())
    source = torch.tensor([[5, 9, 4, 6, 8], [7, 10, 4, 0, 0]])
    reverse = torch.tensor([[8, 6, 4, 9, 5], [4, 10, 7, 0, 0]])
    lengths, target = torch.tensor([5, 3]), torch.tensor([[2, 5], [2, 9]])
    torch.testing.assert_close(reversing(source, target, lengths), plain(reverse, target, lengths))
    if decoder != "plain":  # weights are in the order of the sentence
        with qkv.watch(plain) as expected, qkv.watch(reversing) as seen:
            plain(reverse, target, lengths)
            reversing(source, target, lengths)
        torch.testing.assert_close(seen["decoder"].weights[0], expected["decoder"].weights[0].flip(-1))
        torch.testing.assert_close(
            seen["decoder"].weights[1, ..., :3], expected["decoder"].weights[1, ..., :3].flip(-1)
        )


@pytest.mark.parametrize("decoder", ["plain", "bahdanau", "luong"])
def test_scheduled_sampling_feeds_none_or_all_of_the_argmax_tokens(decoder, batch):
    source, target = batch
    forced = make_model(decoder=decoder)
    expected = forced(source, target)
    never = make_model(decoder=decoder, scheduled_sampling=1e-300).train()
    torch.testing.assert_close(never(source, target), expected)

    always = make_model(decoder=decoder, scheduled_sampling=1.0)
    state, token, greedy = always.init_state(always.encode(source)), target[:, 0], []
    for _ in range(target.shape[1]):
        logits, state = always.step(token, state)
        greedy.append(logits)
        token = logits.argmax(dim=-1)
    torch.testing.assert_close(always(source, target), expected)  # evaluation uses teacher forcing
    torch.testing.assert_close(always.train()(source, target), torch.stack(greedy, dim=1))


def test_scheduled_sampling_replaces_the_given_share_of_tokens():
    model = make_model(decoder="plain", scheduled_sampling=0.3).train()
    taken: list[torch.Tensor] = []
    model.decoder.embed.register_forward_hook(lambda module, inputs, output: taken.append(inputs[0][:, 0]))
    truth = torch.full((500, 9), VOCABULARY - 1)
    bias_against_target = torch.arange(VOCABULARY) * -100.0
    model.readout.register_forward_hook(lambda module, inputs, output: output + bias_against_target)
    with torch.no_grad():
        model(torch.ones(500, 3, dtype=torch.long), truth)
    assert taken[0].eq(VOCABULARY - 1).all()
    own = torch.stack(taken[1:]).ne(VOCABULARY - 1).double().mean()
    assert abs(own - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5


@pytest.mark.parametrize("encoder", [name for name, cls in registered("encoder").items() if not cls.reads_speech])
def test_tied_weights_are_one_tensor(encoder):
    tied = make_model(tie_embeddings=True, encoder=encoder)
    assert tied.readout.weight is tied.decoder.embed.weight
    assert tied.encoder.embed.weight is tied.decoder.embed.weight
    apart = make_model(source_vocab_size=9, tie_embeddings=True, encoder=encoder)
    assert apart.readout.weight is apart.decoder.embed.weight
    assert apart.encoder.embed.weight.shape == (9, 6)
    assert make_model().readout.weight is not make_model().decoder.embed.weight


@pytest.mark.parametrize(("context_dropout", "zeros"), [(None, 0.5), (0.0, 0.0), (0.9, 0.9)])
def test_context_dropout_applies_to_the_attended_states(context_dropout, zeros):
    model = make_model(hidden_dim=64, layers=2, dropout=0.5, context_dropout=context_dropout).train()
    source = torch.randint(4, 9, (32, 8))
    for memory, share in ((model.encode(source), zeros), (model.eval().encode(source), 0.0)):
        assert memory.source is not None
        assert (memory.source.values == 0).double().mean().item() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("encoder", ["conv", "transformer"])
def test_without_final_states_the_mean_of_the_encoder_states_sets_the_initial_state(encoder, batch):
    model = make_model(encoder={"name": encoder, "layers": 1, "dim": 4}, layers=2)
    source, _ = batch
    encoded = model.encoder(source[:1], LENGTHS[:1])
    mean = encoded.values[0].mean(dim=0)
    expected = torch.tanh(model.decoder.bridge.project(mean)).view(2, 8)
    torch.testing.assert_close(model.init_state(model.encode(source[:1])).hidden[0], expected)


@pytest.mark.parametrize("estimator", ["straight-through", "gumbel", "reinforce"])
def test_hard_attention_selects_one_position_per_step_in_training(estimator, batch):
    source, target = batch
    model = make_model(align={"name": "hard", "estimator": estimator}).train()
    with qkv.watch(model) as seen:
        model(source, target, LENGTHS)
    weights = seen["decoder"].weights
    assert weights[:3].sum(dim=-1).eq(1).all()
    assert weights[:3].max(dim=-1).values.eq(1).all()


@pytest.mark.compiled
@pytest.mark.parametrize("decoder", ["plain", "bahdanau", "luong"])
def test_compiled_forward_and_backward_match_eager(decoder):
    model = make_model(decoder=decoder).float()
    inputs = torch.randint(4, 11, (3, 7)), torch.randint(4, 11, (3, 4)), torch.tensor([7, 3, 5])
    compiled = torch.compile(model, backend="aot_eager")  # nn.GRU breaks the graph
    expected, actual = (run(*inputs) for run in (model, compiled))
    torch.testing.assert_close(actual, expected)
    weights = list(model.parameters())
    grads = (torch.autograd.grad(logits.sin().sum(), weights) for logits in (expected, actual))
    for grad, expected_grad in zip(*grads, strict=True):
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"score": "additiv"}, "score: unknown score 'additiv' .did you mean additive"),
        ({"cell": "gur"}, r"cell = 'gur' \(did you mean gru\?\)"),
        ({"decoder": "plan"}, r"decoder = 'plan' \(did you mean plain\?\)"),
        ({"encoder": "cnn"}, "encoder: unknown encoder 'cnn'"),
        ({"backend": "cuda"}, "backend = 'cuda'"),
        ({"hidden_dim": 7}, "encoder.dim 7 must be even"),
        ({"encoder": {"name": "rnn", "dim": 7}}, "encoder.dim 7 must be even"),
        ({"encoder": {"name": "transformer", "heads": 3}}, "encoder.dim 128 must be divisible by encoder.heads 3"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"context_dropout": 1.0}, "context_dropout must be"),
        ({"scheduled_sampling": 1.5}, "scheduled_sampling must be"),
        ({"embedding_dim": 0}, "embedding_dim must be"),
        ({"layers": 0}, "layers must be"),
        ({"source_vocab_size": 10**12}, "source_vocab_size must be"),
        ({"layers": 1024, "hidden_dim": 2**24}, r"layers \* hidden_dim"),
        ({"encoder": {"name": "rnn", "layers": 1024, "dim": 2**24}}, "encoder.layers"),
        ({"align": {"name": "local_p", "window": 0}}, "align.window must be"),
        ({"align": {"name": "softmax", "window": 3}}, "unknown key align.window"),
        ({"align": {"name": "hard", "estimator": "reinforce", "entropy": -0.1}}, "align.entropy must be"),
        ({"align": {"name": "hard", "estimator": "reinforce", "discount": 1.5}}, "align.discount must"),
        ({"align": {"name": "hard", "discount": 0.5}}, "align.*reinforce"),
        ({"score": {"name": "low_rank", "rank": 0}}, "score.rank must be"),
        ({"encoder": {"name": "rnn", "dim": 64}, "bridge": "none"}, "bridge = 'none' .*set bridge to"),
        ({"encoder": {"name": "rnn", "layers": 2}, "bridge": "none"}, "bridge = 'none' .*set bridge to"),
        ({"encoder": "conv", "bridge": "none"}, "bridge = 'none' .*set bridge to"),
        ({"encoder": {"name": "rnn", "dim": 64}, "score": "dot"}, "score.*Bilinear"),
        ({"coverage": True, "score": "location"}, "coverage"),
        ({"coverage": True, "decoder": "luong", "input_feeding": False}, "coverage"),
        ({"context": "both"}, "context applies to decoder = 'plain' only"),
        ({"input_feeding": False}, "input_feeding applies to decoder = 'luong' only"),
        ({"decoder": "plain", "score": "dot"}, "score does not apply to decoder = 'plain'"),
        ({"decoder": "plain", "align": "hard"}, "align does not apply to decoder = 'plain'"),
        ({"decoder": "plain", "coverage": True}, "coverage does not apply to decoder = 'plain'"),
        ({"decoder": "plain", "context_dropout": 0.5}, "context_dropout does not apply to decoder = 'plain'"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=f"^{words}"):
        RNNSeq2SeqConfig(**wrong)


def test_a_config_is_complete_and_restored_from_its_data():
    config = RNNSeq2SeqConfig(encoder={"name": "conv", "kernel": 5}, align={"name": "local_p", "window": 3})
    assert build(RNNSeq2SeqConfig, config.to_dict(), "here") == config
    assert RNNSeq2SeqConfig().replace(target_vocab_size=7).target_vocab_size == 7
    assert set(describe_fields(RNNSeq2SeqConfig)) == set(RNNSeq2SeqConfig.model_fields)


@pytest.mark.parametrize(("layers", "dim"), [(1, 2**24), (1024, 2**14)])
def test_the_largest_config_can_be_built_on_the_meta_device(layers, dim):
    with torch.device("meta"):
        model = RNNSeq2Seq(RNNSeq2SeqConfig(cell="lstm", layers=layers, hidden_dim=dim))
    assert model.decoder.bridge.project.weight.shape == (2**25, 2**24)
