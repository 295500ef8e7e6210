"""The LSTMN: equations, stepwise decoding, and its tapes."""

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import qkv
from qkv.attention import Additive, Dot, attend
from qkv.errors import InputError
from qkv.models.lstmn import LSTMN, LSTMNConfig, ProjectedAdditive
from qkv.nn.interfaces import detach_state, select, state_tensors

VOCABULARY = 9
SIZES = {"embedding_dim": 5, "hidden_dim": 6, "layers": 2}


def make(dtype: torch.dtype = torch.float32, **changes: object) -> LSTMN:
    torch.manual_seed(0)
    return LSTMN(LSTMNConfig(vocab_size=VOCABULARY, **SIZES | changes)).to(dtype).eval()


@pytest.fixture
def tokens():
    return torch.randint(0, VOCABULARY, (3, 8), generator=torch.Generator().manual_seed(1))


def by_hand(model, tokens):
    """Logits and weights of each layer for one text, from the equations of the paper."""
    hidden, span = model.config.hidden_dim, model.config.span
    x = [model.embed.weight[token] for token in tokens]
    attention = []
    for layer in model.layers:
        w_x, u_i, u_f, u_o, u_c = layer.input_proj.weight.split(hidden)
        _, b_i, b_f, b_o, b_c = layer.input_proj.bias.split(hidden)
        query_bias = layer.input_proj.bias[:hidden]
        w_read, r_i, r_f, r_o, r_c = layer.read_proj.weight.split(hidden)
        score = layer.attend.score
        h, c, rows = [], [], []
        last = torch.zeros(hidden).double()  # ~h_{t-1}
        for t, x_t in enumerate(x):
            first = max(0, t - span) if span else 0
            query = w_x @ x_t + query_bias + w_read @ last
            if isinstance(score, Dot):
                a = [query @ h[i] for i in range(first, t)]
            else:
                w_h, v = score.key_weight[0].T, score.vector[0]
                a = [v @ torch.tanh(w_h @ h[i] + query) for i in range(first, t)]
            s = torch.stack(a).exp() / torch.stack(a).exp().sum() if a else torch.zeros(0).double()
            h_read, c_read = torch.zeros(hidden).double(), torch.zeros(hidden).double()
            for weight, i in zip(s, range(first, t), strict=True):
                h_read, c_read = h_read + weight * h[i], c_read + weight * c[i]
            i_t = torch.sigmoid(r_i @ h_read + u_i @ x_t + b_i)
            f_t = torch.sigmoid(r_f @ h_read + u_f @ x_t + b_f)
            o_t = torch.sigmoid(r_o @ h_read + u_o @ x_t + b_o)
            c.append(f_t * c_read + i_t * torch.tanh(r_c @ h_read + u_c @ x_t + b_c))
            h.append(o_t * torch.tanh(c[t]))
            last = h_read
            rows.append(s)
        x = h
        attention.append(rows)
    return torch.stack([model.readout(item) for item in x]), attention


@pytest.mark.parametrize(("span", "score"), [(0, "additive"), (1, "additive"), (3, "additive"), (3, "dot")])
def test_outputs_and_watched_weights_match_the_equations(tokens, span, score):
    model = make(torch.float64, span=span, score=score)
    with qkv.watch(model) as seen:
        actual = model(tokens)
    assert list(seen) == ["layers.0", "layers.1"]
    for row, text in enumerate(tokens):
        logits, attention = by_hand(model, text)
        torch.testing.assert_close(actual[row], logits, rtol=0, atol=1e-10)
        for record, rows in zip(seen.values(), attention, strict=True):
            for t, expected in enumerate(rows):
                weights = record.weights[row, 0, t]
                torch.testing.assert_close(weights[: len(expected)], expected, rtol=0, atol=1e-10)
                assert weights[len(expected) :].eq(0).all()


def test_with_a_span_of_one_it_matches_a_pytorch_lstm(tokens):
    model = make(torch.float64, span=1)
    twin = torch.nn.LSTM(5, 6, num_layers=2, batch_first=True).double()
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            for name, weight in (("weight_ih", layer.input_proj.weight), ("weight_hh", layer.read_proj.weight),
                                 ("bias_ih", layer.input_proj.bias)):  # fmt: skip
                _, i, f, o, c = weight.split(6)
                getattr(twin, f"{name}_l{number}").copy_(torch.cat((i, f, c, o)))
            getattr(twin, f"bias_hh_l{number}").zero_()
        hidden, _ = twin(model.embed(tokens))
        torch.testing.assert_close(model(tokens), model.readout(hidden), rtol=0, atol=1e-10)


def test_weights_of_each_token_sum_to_one_over_its_past(tokens):
    model = make(span=0)
    with qkv.watch(model, layers=0) as seen:
        model(tokens)
    weights = seen["layers.0"].weights
    assert weights.shape == (3, 1, 8, 7)
    assert weights.triu(0).eq(0).all()  # of the tokens from t on
    torch.testing.assert_close(weights.sum(-1), torch.tensor([0.0] + [1.0] * 7).expand(3, 1, 8))


def test_the_score_is_additive_with_a_projected_query():
    torch.manual_seed(0)
    additive, projected = Additive(5 + 6, 6, 6), ProjectedAdditive(6)
    projected.load_state_dict({name: additive.state_dict()[name] for name in ("key_weight", "vector")})
    x, last, key = torch.randn(2, 1, 3, 5), torch.randn(2, 1, 3, 6), torch.randn(2, 1, 4, 6)
    w_x, w_read = additive.query_weight[0].split((5, 6))
    value = torch.randn(2, 1, 4, 12)
    expected = attend(torch.cat((x, last), dim=-1), key, value, score=additive)
    actual = attend(x @ w_x + last @ w_read, key, value, score=projected)
    torch.testing.assert_close(actual.output, expected.output)


@pytest.mark.parametrize("past", [0, 3])
def test_the_fused_additive_kernel_matches_the_reference(past):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    score = ProjectedAdditive(6)
    query, key, value = torch.randn(2, 1, 1, 6), torch.randn(2, 1, past, 6), torch.randn(2, 1, past, 12)
    fused = attend(query, key, value, score=score, backend="triton")
    torch.testing.assert_close(fused.output, attend(query, key, value, score=score, backend="reference").output)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(("span", "score"), [(0, "additive"), (2, "additive"), (2, {"name": "low_rank", "rank": 3})])
def test_steps_and_chunks_match_the_full_sequence(tokens, dtype, tolerance, span, score):
    model = make(dtype, span=span, score=score)
    at_once = model(tokens)
    state = model.init_state(3)
    for t in range(8):
        logits, state = model.step(tokens[:, t], state)
        torch.testing.assert_close(logits, at_once[:, t], rtol=0, atol=tolerance)
    first, state = model.forward_from(tokens[:, :5], model.init_state(3))
    nothing, state = model.forward_from(tokens[:, 5:5], detach_state(state))
    second, _ = model.forward_from(tokens[:, 5:], state)
    torch.testing.assert_close(torch.cat((first, nothing, second), dim=1), at_once, rtol=0, atol=tolerance)


def test_a_text_alone_matches_a_batch(tokens):
    model = make()
    together = model(tokens)
    for row in range(3):
        torch.testing.assert_close(model(tokens[row : row + 1])[0], together[row], rtol=0, atol=1e-5)


def test_logits_depend_on_all_earlier_tokens_and_on_no_later_one(tokens):
    model = make(torch.float64)
    before = model(tokens)
    for position in range(8):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % VOCABULARY
        difference = (model(changed) - before).abs().amax(dim=-1)
        assert difference[:, :position].eq(0).all()
        assert difference[:, position:].min() > 0


def test_a_tape_grows_up_to_its_span(tokens):
    model = make(span=4)
    state = model.init_state(3)
    lengths, sizes = [], []
    for t in range(40):
        _, state = model.step(tokens[:, t % 8], state)
        lengths.append(state.tapes[0].keys.shape[2])
        sizes.append(sum(item.untyped_storage().nbytes() for item in state_tensors(state).values()))
    assert lengths[:6] == [1, 2, 3, 4, 4, 4]
    assert sizes[9] == sizes[39]


def test_a_detached_tape_is_attended_to_but_gets_no_gradient(tokens):
    model = make(torch.float64)
    _, state = model.forward_from(tokens[:, :4], model.init_state(3))
    cut = detach_state(state)
    assert all(item.requires_grad for item in state_tensors(state).values())
    assert not any(item.requires_grad for item in state_tensors(cut).values())
    carried, _ = model.forward_from(tokens[:, 4:], cut)
    assert not torch.allclose(carried, model(tokens[:, 4:]))
    carried.sum().backward()
    used = model.embed.weight.grad.abs().sum(-1) > 0
    assert used.nonzero()[:, 0].tolist() == tokens[:, 4:].unique().tolist()


@pytest.mark.parametrize("span", [0, 3])
def test_reordered_beams_continue_from_their_own_history(span):
    model = make(span=span)
    generator = torch.Generator().manual_seed(3)
    history = torch.tensor([[1], [2], [3]])
    state = model.init_state(3)
    for _ in range(6):
        logits, state = model.step(history[:, -1], state)
        rows = torch.randint(0, len(history), (4,), generator=generator)
        token = torch.randint(0, VOCABULARY, (4, 1), generator=generator)
        history, state = torch.cat((history[rows], token), dim=1), select(state, rows)
    logits, _ = model.step(history[:, -1], state)
    torch.testing.assert_close(logits, model(history)[:, -1], rtol=0, atol=1e-5)


def test_gradients_match_finite_differences():
    model = make(torch.float64, embedding_dim=2, hidden_dim=2, layers=1, span=2)
    tokens = torch.tensor([[1, 2, 3, 1], [4, 4, 0, 2]])
    names, weights = zip(*model.named_parameters(), strict=True)

    def logits(*weights):
        return functional_call(model, dict(zip(names, weights, strict=True)), (tokens,))[:, 1:, :2]

    assert torch.autograd.gradcheck(logits, weights, fast_mode=True)


def test_every_weight_gets_a_gradient(tokens):
    model = make()
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_a_single_token_works(tokens):
    assert make()(tokens[:1, :1]).shape == (1, 1, VOCABULARY)


def test_it_runs_and_learns_in_bfloat16(tokens):
    model = make()
    expected = model(tokens)
    kinds = set()
    for layer in model.layers:  # the fused kernel needs one dtype for all inputs
        layer.attend.register_forward_pre_hook(
            lambda _, inputs: kinds.update((inputs[0].dtype, inputs[1].tensor.dtype, inputs[2].dtype))
        )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, state = model.forward_from(tokens[:, :5], model.init_state(3))
        second, state = model.forward_from(tokens[:, 5:], detach_state(state))
    assert kinds == {torch.bfloat16}
    assert {item.dtype for item in state_tensors(state).values()} == {torch.float32}
    actual = torch.cat((first, second), dim=1).float()
    assert (actual - expected).abs().max() < 0.05
    actual.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_it_overfits_eight_texts():
    torch.manual_seed(0)
    model = LSTMN(LSTMNConfig(vocab_size=VOCABULARY, embedding_dim=16, hidden_dim=16, dropout=0.0))
    texts = torch.randint(1, VOCABULARY, (8, 6), generator=torch.Generator().manual_seed(2))
    decoder_input = torch.cat((torch.arange(8)[:, None], texts[:, :-1]), dim=1)  # each starts with a distinct token
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(120):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(decoder_input).flatten(0, 1), texts.flatten())
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert model.eval()(decoder_input).argmax(-1).equal(texts)


def test_dropout_acts_in_training_only(tokens):
    model = make(dropout=0.5)
    assert model(tokens).equal(model(tokens))
    model.train()
    assert not model(tokens).equal(model(tokens))


def test_dropout_acts_on_the_input_and_output_of_each_layer(tokens):
    model = make()
    shapes = []
    model.dropout.register_forward_hook(lambda dropout, inputs, output: shapes.append(output.shape))
    model(tokens)
    assert shapes == [(3, 8, 5), (3, 8, 6), (3, 8, 6)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"embedding_dim": 2**25}, "embedding_dim must be"),
        ({"span": -1}, "span must be at least 0"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"hidden_dim": 0}, "hidden_dim must be"),
        ({"layers": 10**6}, "layers must be"),
    ],
)
def test_invalid_configs_raise(wrong, words):
    with pytest.raises(InputError, match=words):
        LSTMNConfig(**wrong)


@pytest.mark.compiled
def test_compiled_model_matches_eager(tokens):
    model = make(layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens[:, :4]), model(tokens[:, :4]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_replays_a_chunk_with_a_carried_tape(tokens):
    model = make(embedding_dim=16, hidden_dim=16, span=4).cuda()
    tokens = tokens.cuda()

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def run(first, second):
        with torch.no_grad():
            _, state = model.forward_from(first, model.init_state(3))
        return model.forward_from(second, state)[0]

    expected = run(tokens[:, :5].flip(0), tokens[:, 5:].flip(0))
    first, second = tokens[:, :5].clone(), tokens[:, 5:].clone()
    run(first, second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        actual = run(first, second)
    first.copy_(tokens[:, :5].flip(0))
    second.copy_(tokens[:, 5:].flip(0))
    graph.replay()
    torch.testing.assert_close(actual, expected.detach())
