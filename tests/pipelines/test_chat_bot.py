"""The chat bot: its history and limits, decoding against a plain loop, sampling, attention, and bad input."""

import numpy as np
import pytest
import torch

import qkv
from qkv.attention import watch
from qkv.errors import InputError
from qkv.generation import GenerationConfig, Sampling
from qkv.hub.model_folder import save_model
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.pipelines.chat_bot import ChatBot
from qkv.tokenizers import BPETokenizer
from tests.pipelines.chat_bots import SIZES, dialogue_model

GREEDY = GenerationConfig(max_new_tokens=6, sampling=Sampling(temperature=0))
NAMES = [*SIZES]


@torch.inference_mode()
def greedy_loop(model, history, count, end_after=1):
    """The most likely tokens one at a time, without the special tokens and, at first, the end token."""
    tokenizer = model.tokenizer
    special = tokenizer.special_tokens
    source = tokenizer.encode("\n".join(history), add_special_tokens=True)
    never = [special.pad, special.unk, special.begin, tokenizer.vocab["<speaker1>"], tokenizer.vocab["<speaker2>"]]
    tokens = []
    while len(tokens) < count:
        if isinstance(model, GPT2):
            logits = model(torch.tensor([[*source, *tokens]]))[0, -1]
        else:
            target = torch.tensor([[special.begin, *tokens]])
            logits = model(torch.tensor([source]), target, torch.tensor([len(source)]))[0, -1]
        logits[never + ([special.end] if len(tokens) < end_after else [])] = -torch.inf
        token = int(logits.argmax())
        if token == special.end:
            break
        tokens.append(token)
    return tokenizer.target.decode(tokens)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use_engine", [False, True])
def test_responses_are_those_of_a_plain_loop_with_the_history(name, use_engine):
    model = dialogue_model(name)
    bot = ChatBot(model, use_engine=use_engine)
    turns = []
    for message in ("hi there", "do you like cats?", "ok"):
        reply = bot(message, max_new_tokens=6, temperature=0)
        turns.append(message)
        given = turns[-4:]
        assert reply.text == greedy_loop(model, given, 6)
        assert (reply.history, reply.dropped_turns) == (tuple(given), len(turns) - len(given))
        turns.append(reply.text)
        assert bot.history == turns
    bot.reset()
    assert bot.history == []
    assert bot("hi there", max_new_tokens=6, temperature=0).text == turns[1]


@pytest.mark.parametrize("name", NAMES)
def test_samples_depend_on_the_seed_and_on_the_number_of_turns(name):
    bot = ChatBot(dialogue_model(name))
    config = [GenerationConfig(max_new_tokens=6, sampling=Sampling(temperature=3.0, seed=seed)) for seed in (0, 1)]
    first = bot.respond(["hello"], config[0]).text
    assert bot.respond(["hello"], config[0]).text == first
    assert bot.respond(["hello"], config[1]).text != first
    limited = ChatBot(bot.model, history_turns=1)  # the model is given the same text
    assert limited.respond(["ok", "good", "hello"], config[0]).text != first
    assert bot.history == []


@pytest.mark.parametrize("name", NAMES)
def test_a_long_message_is_truncated_at_its_start_and_old_turns_are_dropped(name):
    bot = ChatBot(dialogue_model(name), history_turns=3, history_tokens=20)
    long = "how are you? " * 30
    reply = bot.respond(["hello", "hi there", long], GREEDY)
    assert (reply.dropped_turns, reply.truncated, len(reply.history)) == (2, True, 1)
    assert long.strip().endswith(reply.history[0])
    assert len(bot.tokenizer.encode(reply.history[0], add_special_tokens=True)) <= 20
    reply = bot.respond(["hello", "hi there", "ok", "good"], GREEDY)
    assert not reply.truncated
    assert reply.history == ("hi there", "ok", "good")[-len(reply.history) :]


def test_the_context_of_a_language_model_is_shared_by_history_and_response():
    bot = ChatBot(dialogue_model("gpt", max_length=32), history_turns=9, history_tokens=100)
    config = GenerationConfig(max_new_tokens=20, sampling=Sampling(temperature=0))
    reply = bot.respond(["do you like cats?"] * 9, config)
    assert len(bot.tokenizer.encode("\n".join(reply.history), add_special_tokens=True)) <= 32 - 19
    with pytest.raises(InputError, match="max_new_tokens"):
        bot.check(GenerationConfig(max_new_tokens=32))
    ChatBot(dialogue_model("gru", max_length=32)).check(GenerationConfig(max_new_tokens=32))


@pytest.mark.parametrize("name", NAMES)
def test_each_row_of_attention_is_that_of_the_step_that_generated_the_token(name):
    model = dialogue_model(name)
    bot = ChatBot(model)
    reply = bot.respond(["hi there", "hello", "how are you?"], GREEDY)
    layers = {attention.layer: attention for attention in reply.attention}
    source = bot.tokenizer.encode("\n".join(reply.history), add_special_tokens=True)
    target = bot.tokenizer.target
    by_piece = {target.piece(token): token for token in range(len(target))}
    tokens = [by_piece[piece] for piece in reply.attention[0].rows]
    assert target.decode(tokens) == reply.text
    for step in range(len(tokens)):
        with watch(model) as records, torch.inference_mode():
            if name == "gpt":
                model(torch.tensor([[*source, *tokens[:step]]]))
            else:
                inputs = torch.tensor([[target.special_tokens.begin, *tokens[:step]]])
                model(torch.tensor([source]), inputs, torch.tensor([len(source)]))
        for layer in [*records] if name == "gpt" else model.alignment_layers:
            row = records[layer].weights[0, :, -1, : len(source)].numpy()
            np.testing.assert_allclose(layers[layer].weights[:, step], row, atol=1e-5)
    if name == "gpt":
        heads = np.concatenate([attention.weights for attention in reply.attention[1:]])
        np.testing.assert_array_equal(reply.attention[0].weights, heads)
    words = reply.words()
    assert words.columns == tuple(reply.source.split())
    assert words.columns[:4] == ("<speaker1>", "hi", "there", "</s>")
    if name != "gpt":  # a language model also attends to its own response
        np.testing.assert_allclose(words.average.sum(axis=1), 1.0, atol=1e-4)


def test_the_bot_is_public_and_loads_a_folder(tmp_path):
    model = dialogue_model("gru")
    save_model(model, model.tokenizer, tmp_path)
    bot = qkv.ChatBot(tmp_path, device="cpu")
    assert bot("hello", temperature=0).text == ChatBot(model)("hello", temperature=0).text


def test_unknown_characters_of_the_message_are_reported():
    reply = ChatBot(dialogue_model("gru")).respond(["\u4f60", "hello \u597d"], GREEDY)
    assert reply.unknown == ("\u597d",)


def test_bad_input_is_an_error():
    bot = ChatBot(dialogue_model("gru"))
    for message in ("", " \n"):
        with pytest.raises(InputError, match="empty"):
            bot(message)
    assert bot.history == []
    with pytest.raises(InputError, match="empty"):
        bot.respond([], GREEDY)
    for options in ({"temperature": -1}, {"top_p": 2.0}, {"max_new_tokens": 0}):
        with pytest.raises(InputError, match=next(iter(options))):
            bot("hello", **options)
    for options in ({"history_turns": 0}, {"history_tokens": 1}):
        with pytest.raises(InputError, match=next(iter(options))):
            ChatBot(dialogue_model("gru"), **options)
    tokenizer = BPETokenizer.train(["hello"], vocab_size=20)
    plain = GPT2(GPT2Config(vocab_size=len(tokenizer), dim=8, heads=1, layers=1))
    with pytest.raises(InputError, match="dialogue"):
        ChatBot(plain, tokenizer)
    with pytest.raises(InputError, match="dialogue"):
        ChatBot(plain)
