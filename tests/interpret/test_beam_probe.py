"""The tree of a beam search: every hypothesis is a path in it, and its scores are those of the model."""

import pytest
import torch

from qkv.interpret.beam_probe import BeamProbe, SearchedAnswer
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.pipelines.translator import Translator
from qkv.tokenizers import CharTokenizer

TEXTS = ["abc", "cabcab", "bb"]
BEAMS = 4


@pytest.fixture(scope="module")
def probe() -> BeamProbe:
    tokenizer = CharTokenizer.train(["abc cab"])
    torch.manual_seed(3)
    sizes = {"source_vocab_size": len(tokenizer), "target_vocab_size": len(tokenizer), "max_length": 12}
    model = Transformer(TransformerConfig(dim=16, heads=2, ffn_dim=32, encoder_layers=1, decoder_layers=1, **sizes))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return BeamProbe(model.eval(), tokenizer)


def path(answer: SearchedAnswer, index: int) -> list[str]:
    """The tokens from the first to the node `index`."""
    tokens = []
    while index >= 0:
        tokens.append(answer.nodes[index].token)
        index = answer.nodes[index].parent
    return tokens[::-1]


def test_hypotheses_are_those_of_the_translator(probe: BeamProbe) -> None:
    translator = Translator(probe.model, probe.tokenizer)
    for text in TEXTS:
        expected = translator(text, num_beams=BEAMS, num_return_sequences=BEAMS)
        found = probe(text, num_beams=BEAMS)
        assert [each.text for each in found.hypotheses] == [each.text for each in expected]
        assert [each.score for each in found.hypotheses] == pytest.approx([each.score for each in expected], abs=1e-4)
        assert (found.text, found.score) == (found.hypotheses[0].text, found.hypotheses[0].score)


def test_every_hypothesis_is_a_path_that_ends_in_its_leaf(probe: BeamProbe) -> None:
    answer = probe(TEXTS[0], num_beams=BEAMS)
    for hypothesis, leaf in zip(answer.hypotheses, answer.leaves, strict=True):
        *tokens, end = path(answer, leaf)
        assert "".join(tokens) == hypothesis.text
        assert end == probe.tokenizer.piece(probe.special_tokens.end)
        assert answer.nodes[leaf].score == pytest.approx(hypothesis.score, abs=1e-4)


def test_log_probabilities_of_nodes_are_those_of_one_forward_pass(probe: BeamProbe) -> None:
    text = TEXTS[1]
    answer = probe(text, num_beams=BEAMS)
    ids = {probe.tokenizer.piece(token): token for token in probe.tokenizer.vocab.values()}
    source = torch.tensor([probe.tokenizer.encode(text, add_special_tokens=True)])
    suppressed = torch.tensor(probe.special_tokens.suppressed)
    for index in range(0, len(answer.nodes), 5):
        tokens = [ids[token] for token in path(answer, index)]
        target = torch.tensor([[probe.special_tokens.begin, *tokens[:-1]]])
        with torch.inference_mode():
            log_p = probe.model(source, target, torch.tensor([source.shape[1]]))[0].log_softmax(dim=-1)
        assert not torch.isin(torch.tensor(tokens), suppressed).any()
        expected = sum(float(log_p[t, token]) for t, token in enumerate(tokens))
        assert answer.nodes[index].log_p == pytest.approx(expected, abs=1e-3)


def test_each_step_keeps_at_most_the_number_of_beams_and_the_best_candidates(probe: BeamProbe) -> None:
    answer = probe(TEXTS[0], num_beams=BEAMS)
    for step in range(max(node.step for node in answer.nodes) + 1):
        running = [node for node in answer.nodes if node.step == step and node.score is None]
        kept = [node.log_p for node in running if node.kept]
        assert kept or step >= max(each.new_tokens for each in answer.hypotheses)  # the search continues until the end
        assert len(kept) <= BEAMS
        assert all(node.log_p <= min(kept) for node in running if not node.kept)
    assert all(node.parent < index for index, node in enumerate(answer.nodes))
    assert all(answer.nodes[node.parent].kept for node in answer.nodes if node.parent >= 0)
