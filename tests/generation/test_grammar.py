"""Constrained decoding: every sequence is in the language, for random weights, in all searches and the engine."""

import random
from collections import deque

import pytest
import torch

from qkv.errors import InputError
from qkv.generation import (
    BracketGrammar,
    DecodingConstraints,
    Engine,
    GenerationConfig,
    Request,
    Sampling,
    Tokens,
    generate,
)
from qkv.generation.cpu.packed_stack import PackedStack
from qkv.generation.cpu.runner import CPURunner
from qkv.generation.decoder_stack import decoder_stack, encoder_stack
from qkv.generation.static_steps import BeamSteps, StaticBeamDecoder, StaticTokenDecoder, TokenSteps
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.transformer import Transformer, TransformerConfig

BEGIN, END, VOCABULARY = 2, 3, 16
OPENING, CLOSING, TERMINALS = (4, 6, 8), (5, 7, 9), (10, 11, 12)  # the others are never allowed
GRAMMAR = BracketGrammar(OPENING, CLOSING, TERMINALS, END, VOCABULARY, max_depth=5)
CONFIGS = {
    "greedy": GenerationConfig(),
    "beams": GenerationConfig(num_beams=4, num_return_sequences=2),
    "samples": GenerationConfig(sampling=Sampling(temperature=2.0, seed=1), num_return_sequences=2),
}


def is_tree(tokens, terminals, limit):
    """Whether tokens are a tree with a single root; a recursive-descent oracle that shares nothing with the grammar."""

    def tree(rest):
        """The tokens after a tree at the start of `rest`; None if there is none."""
        if not rest:
            return None
        if rest[0] in TERMINALS:
            return rest[1:]
        if rest[0] not in OPENING:
            return None
        closing, rest = CLOSING[OPENING.index(rest[0])], tree(rest[1:])
        while rest and rest[0] != closing:
            rest = tree(rest)
        return rest[1:] if rest else None

    count = sum(token in TERMINALS for token in tokens)
    return tree(list(tokens)) == [] and count == terminals and len(tokens) <= limit


def transformer(seed):
    torch.manual_seed(seed)
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "dim": 16, "heads": 2, "ffn_dim": 16}
    return scaled(Transformer(TransformerConfig(**sizes, encoder_layers=1, decoder_layers=1, max_length=64)))


def gru(seed):
    torch.manual_seed(seed)
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY, "embedding_dim": 8, "hidden_dim": 8}
    return scaled(RNNSeq2Seq(RNNSeq2SeqConfig(**sizes, max_length=64)))


def scaled(model):
    """Large random weights: the model prefers a few tokens strongly, whether they are allowed or not."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.eval()


def requests(seed, count=8):
    generator = random.Random(seed)
    made = []
    for number in range(count):
        terminals = generator.randint(1, 9)
        limit = terminals + 2 + generator.randint(0, 12)
        source = [generator.randrange(4, 9) for _ in range(terminals)]
        made.append(Request([BEGIN], limit, source=source, row_id=number, grammar_input=(terminals, limit)))
    return made


def simple_search(model, asked, config):
    lengths = torch.tensor([len(request.source) for request in asked])
    source = torch.zeros(len(asked), int(lengths.max()), dtype=torch.long)
    for row, request in zip(source, asked, strict=True):
        row[: len(request.source)] = torch.tensor(request.source)
    constraints = DecodingConstraints(
        len(asked), BEGIN, END, [request.max_new_tokens for request in asked],
        grammar=GRAMMAR, grammar_inputs=[request.grammar_input for request in asked],
    )  # fmt: skip
    with torch.inference_mode():
        return generate(model, model.init_state(model.encode(source, lengths)), constraints, config)


def check_all(results, asked):
    for hypotheses, request in zip(results, asked, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            assert is_tree(hypothesis.tokens, *request.grammar_input), hypothesis.tokens


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("build", [transformer, gru])
def test_all_sequences_are_trees_and_the_engine_equals_the_simple_search(build, config):
    model, asked = build(0), requests(0)
    expected = simple_search(model, asked, config)
    check_all(expected, asked)
    results = dict(Engine.build(model).decode(asked, Tokens(END, grammar=GRAMMAR), config, batch_size=5))
    check_all([results[number] for number in range(len(asked))], asked)
    for number, hypotheses in enumerate(expected):
        assert [best.tokens for best in hypotheses] == [best.tokens for best in results[number]]
        assert [best.score for best in hypotheses] == pytest.approx([best.score for best in results[number]], 1e-3)
    assert len({hypotheses[0].tokens for hypotheses in expected}) > 3


@pytest.mark.parametrize("name", ["greedy", "beams"])
def test_steps_of_fixed_shape_decode_the_same_trees(name):
    model, asked, config = transformer(0), requests(0), CONFIGS[name]
    beams, tokens = config.num_beams, Tokens(END, grammar=GRAMMAR)
    decoder, encoder = PackedStack(decoder_stack(model), "float32"), PackedStack(encoder_stack(model), "float32")
    runner = tokens.constrain(CPURunner(decoder, encoder, rows=3 * beams, capacity=40, sources=3, source_capacity=12))
    steps_class, decoder_class = (BeamSteps, StaticBeamDecoder) if beams > 1 else (TokenSteps, StaticTokenDecoder)
    steps = steps_class(runner, tokens, config, 40)
    results = dict(decoder_class(steps, deque(enumerate(asked)), tokens, config).run())
    expected = simple_search(model, asked, config)
    for number, hypotheses in enumerate(expected):
        assert [best.tokens for best in hypotheses] == [best.tokens for best in results[number]]


def test_scores_are_those_of_the_model():
    """A grammar excludes sequences, and does not change the probability of the others."""
    model, asked = transformer(0), requests(1, count=1)
    ((best,),) = simple_search(model, asked, GenerationConfig())
    target = torch.tensor([[BEGIN, *best.tokens]])
    with torch.inference_mode():
        log_p = model(torch.tensor([asked[0].source]), target).log_softmax(-1)[0]
    total = sum(float(log_p[index, token]) for index, token in enumerate((*best.tokens, END)))
    assert best.score == pytest.approx(total / (len(best.tokens) + 1), abs=1e-4)


@pytest.mark.parametrize(
    ("words", "limit", "tokens", "expected"),
    [
        (1, 9, [], {*OPENING, *TERMINALS}),  # a single word needs no bracket
        (2, 9, [], {*OPENING}),
        (2, 4, [4], {*TERMINALS}),  # the rest must fit: two words and a closing bracket
        (2, 9, [4], {*OPENING, *TERMINALS}),
        (2, 9, [4, 10], {*OPENING, *TERMINALS}),  # the root is closed after the last word
        (2, 9, [4, 6, 10], {*OPENING, *TERMINALS, 7}),  # only the matching bracket
        (2, 9, [4, 10, 11], {5}),
        (2, 9, [4, 10, 11, 5], {END}),
        (3, 99, [4, 6, 8, 4, 6], {*TERMINALS}),  # as deep as allowed
    ],
)
def test_tokens_that_may_follow(words, limit, tokens, expected):
    state = GRAMMAR.init_state([(words, limit)], torch.device("cpu"))
    for token in [BEGIN, *tokens]:
        state = GRAMMAR.advance(state, torch.tensor([token]))
    assert set(GRAMMAR.allowed(state)[0].nonzero()[:, 0].tolist()) == expected


def test_a_limit_without_room_for_a_tree_is_rejected():
    with pytest.raises(InputError, match="limit"):
        GRAMMAR.init_state([(3, 4)], torch.device("cpu"))


def test_inputs_of_another_number_of_rows_are_rejected():
    with pytest.raises(InputError, match="grammar_inputs"):
        DecodingConstraints(2, BEGIN, END, 9, grammar=GRAMMAR, grammar_inputs=[(1, 9)])
