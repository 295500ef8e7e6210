"""Attribution methods against models with a known explanation, hand computations and captum."""

import math

import numpy as np
import pytest
import torch

import qkv
from qkv.attention import watch
from qkv.errors import InputError
from qkv.interpret.attribution import METHODS, NEED_ATTENTION, AttributionOptions, attribute, check_methods, roll_out
from qkv.interpret.explainable import Explainable
from qkv.interpret.explainable_decoders import NextToken, Translation
from qkv.interpret.explainable_images import ImageCaption, ImageClassification, ImagePrediction
from qkv.interpret.explainable_texts import DocumentClassification, TextClassification
from qkv.interpret.reweighting import reweight
from qkv.models.gpt2 import GPT2, GPT2Config
from qkv.models.han import HAN, HANConfig
from qkv.models.llama import Llama, LlamaConfig
from qkv.models.rnn_lm import RNNLM, RNNLMConfig
from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.models.show_attend_tell import ShowAttendTell, ShowAttendTellConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.models.vit import ViT, ViTConfig
from qkv.pipelines.captioner import Captioner, NamedImage
from qkv.pipelines.classifier import Classifier
from qkv.pipelines.generator import Generator
from qkv.pipelines.image_classifier import ImageClassifier
from qkv.pipelines.translator import Translator
from qkv.tokenizers import CharTokenizer, PairTokenizer, WordTokenizer
from tests.interpret.known_models import FINE, HONEST, LOUD, MISLEADING, Sum, bag_of_words
from tests.tasks.tiny_bert import tiny_bert, tiny_tokenizer

BERT_TEXT = "the cat sat on a mat"


@pytest.fixture
def bert(tmp_path) -> TextClassification:
    model = tiny_bert("classifier", labels=3, label_names=("a", "b", "c"))
    return TextClassification(Classifier(model, tiny_tokenizer(tmp_path), device="cpu"), BERT_TEXT)


def random_weights(model, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.eval()


def translation(model_class=RNNSeq2Seq) -> Translation:
    tokenizer = PairTokenizer(CharTokenizer.train(["abcdef"]), CharTokenizer.train(["xyz"]))
    sizes = {"source_vocab_size": len(tokenizer.source), "target_vocab_size": len(tokenizer.target), "max_length": 12}
    if model_class is RNNSeq2Seq:
        model = RNNSeq2Seq(RNNSeq2SeqConfig(hidden_dim=8, embedding_dim=4, **sizes))
    else:
        config = {"dim": 8, "heads": 2, "ffn_dim": 8, "encoder_layers": 2, "decoder_layers": 2, "tie_embeddings": False}
        model = Transformer(TransformerConfig(**config, **sizes))
    return Translation(
        Translator(random_weights(model, seed=3 if model_class is RNNSeq2Seq else 0), tokenizer, device="cpu"), "abcde"
    )


def caption() -> ImageCaption:
    tokenizer = WordTokenizer.train(["a red circle above a small blue square"])
    config = ShowAttendTellConfig(
        vocab_size=len(tokenizer), height=8, width=8, encoder={"name": "cnn", "filters": (8, 8)}, feature_dim=6,
        embedding_dim=5, hidden_dim=7, max_length=6,
    )  # fmt: skip
    pixels = torch.randint(256, (3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    model = random_weights(ShowAttendTell(config))
    return ImageCaption(Captioner(model, tokenizer, device="cpu"), NamedImage("noise", pixels))


def document(unit: str = "word") -> DocumentClassification:
    text = "A fine film. The cat was good, and the dog was fine. I left."
    tokenizer = WordTokenizer.train([text], lowercase=True)
    model = random_weights(HAN(HANConfig(vocab_size=len(tokenizer), embedding_dim=4, hidden_dim=3, max_length=5)))
    return DocumentClassification(Classifier(model, tokenizer, device="cpu"), text, unit=unit)


@pytest.mark.parametrize("method", ["leave_one_out", "gradient", "integrated_gradients", "attention", "value_weighted"])
def test_every_method_finds_the_only_evidence_if_attention_is_on_it(method):
    assert int(attribute(bag_of_words(HONEST), method)[0].argmax()) == FINE


def test_attention_can_mislead_and_other_methods_do_not():
    prediction = bag_of_words(MISLEADING)
    assert prediction.text == "good"
    assert int(attribute(prediction, "attention")[0].argmax()) == LOUD
    for method in ("leave_one_out", "gradient", "integrated_gradients"):
        assert int(attribute(prediction, method)[0].argmax()) == FINE


def test_leave_one_out_is_the_drop_of_the_log_probability():
    numbers = [2.0, 1.0, -1.0]
    log_sigmoid = lambda x: -math.log1p(math.exp(-x))  # noqa: E731
    expected = [log_sigmoid(2.0) - log_sigmoid(2.0 - number) for number in numbers]
    assert attribute(Sum(numbers), "leave_one_out")[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_rollout_of_two_layers_by_hand():
    first = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    second = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    # 0.5 A + 0.5 I = [[.75, .25], [0, 1]] and [[1, 0], [.25, .75]]; their product, the second on the left:
    torch.testing.assert_close(roll_out([first, second]), torch.tensor([[0.75, 0.25], [0.1875, 0.8125]]))
    with pytest.raises(InputError):
        roll_out([])


def test_rollout_of_bert_starts_at_cls(bert):
    with torch.no_grad(), watch(bert.model) as records:
        bert.forward(bert.everything())
    layers = [records[name].weights[0].mean(0) for name in ("encoder.0", "encoder.1")]
    expected = roll_out(layers)[0, 1:-1]
    torch.testing.assert_close(attribute(bert, "rollout")[0], expected)
    torch.testing.assert_close(attribute(bert, "attention")[0], layers[1][0, 1:-1])
    both = attribute(bert, "attention", AttributionOptions(layers="all"))[0]
    torch.testing.assert_close(both, (layers[0] + layers[1])[0, 1:-1] / 2)


def test_rollout_of_a_translator_goes_through_its_encoder():
    prediction = translation(Transformer)
    records = prediction.record()
    encoder = roll_out(records[f"encoder.{number}"].weights[0].mean(0) for number in (0, 1))
    inside = prediction.owner >= 0
    cross = records["decoder.1.cross"].weights[0].mean(0)[: len(prediction.outputs)]
    torch.testing.assert_close(attribute(prediction, "rollout"), (cross @ encoder)[:, inside])


def test_value_weighted_attention_is_the_norm_of_what_a_token_adds_to_the_output(bert):
    """The contributions of all tokens, as vectors, sum to the output of the layer without its bias."""
    block = bert.model.encoder[1]
    inputs = []
    hook = block.attention.register_forward_hook(lambda module, args, output: inputs.extend((args[0], output[0])))
    with torch.no_grad(), watch(bert.model) as records:
        bert.forward(bert.everything())
    hook.remove()
    x, output = inputs
    value = block.attention.qkv_proj(x).chunk(3, dim=-1)[2][0]
    weights = records["encoder.1"].weights[0, :, 0]  # of [CLS]: [heads, keys]
    parts = [torch.cat([weights[h, j] * value[j, 8 * h : 8 * h + 8] for h in range(2)]) for j in range(value.shape[0])]
    vectors = torch.stack(parts) @ block.attention.out_proj.weight.T
    torch.testing.assert_close(vectors.sum(0) + block.attention.out_proj.bias, output[0, 0])
    norms = vectors.norm(dim=-1)
    torch.testing.assert_close(attribute(bert, "value_weighted")[0], (norms / norms.sum())[1:-1].detach())


def next_token(model_class=GPT2, target: str | None = None) -> NextToken:
    """The letter after "abcda", with the classes of the language models."""
    tokenizer = CharTokenizer.train(["abcdef"])
    sizes = {"vocab_size": len(tokenizer), "max_length": 12, "dim": 8, "layers": 2, "heads": 2, "ffn_dim": 8}
    if model_class is GPT2:
        model = GPT2(GPT2Config(**sizes | {"vocab_size": len(tokenizer) + 3}))  # padded, as in released models
    elif model_class is Llama:
        model = Llama(LlamaConfig(**sizes, kv_heads=1))
    else:
        model = RNNLM(RNNLMConfig(vocab_size=len(tokenizer), hidden_dim=8, embedding_dim=4))
    return NextToken(Generator(random_weights(model), tokenizer, device="cpu", use_engine=False), "abcda", target)


def image(**changes) -> ImageClassification:
    sizes = {"classes": 3, "label_names": ("boot", "bag", "coat"), "channels": 1, "height": 8, "width": 12}
    config = ViTConfig(**sizes, patch=4, dim=8, layers=2, heads=2, ffn_dim=8, **changes)
    pixels = torch.randint(256, (1, 8, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    return ImageClassification(ImageClassifier(random_weights(ViT(config)), device="cpu"), NamedImage("noise", pixels))


PREDICTIONS = {
    "gpt2": next_token,
    "llama": lambda: next_token(Llama),
    "rnn_lm": lambda: next_token(RNNLM),
    "image": image,
    "image, mean": lambda: image(pool="mean"),
    "rnn": translation,
    "transformer": lambda: translation(Transformer),
    "caption": caption,
    "document": document,
    "bag": lambda: bag_of_words(MISLEADING),
}


# Not llama: RMSNorm undoes any scale of its input, so that the output jumps at the baseline.
@pytest.mark.parametrize("name", [name for name in PREDICTIONS if name != "llama"])
def test_integrated_gradients_are_complete(name):
    """They sum to the difference of the log-probabilities of the input and of the baseline."""
    prediction: Explainable = PREDICTIONS[name]()
    scores = attribute(prediction, "integrated_gradients", AttributionOptions(steps=300))
    baseline, _ = baseline_log_probs(prediction)
    whole = prediction.log_probs(prediction.everything())[0]
    torch.testing.assert_close(scores.sum(dim=-1), whole - baseline, atol=2e-3, rtol=2e-3)
    assert scores.shape == (len(prediction.outputs), len(prediction.units))


def baseline_log_probs(prediction):
    """Log-probabilities with zero embeddings, or with the mean color."""
    if isinstance(prediction, ImagePrediction):
        mean = prediction.baseline.expand_as(prediction.image)
        return prediction.chosen(prediction.predict(mean)).detach()[0], mean
    inside = prediction.owner >= 0
    hook = prediction.input_layer.register_forward_hook(
        lambda module, args, output: output * ~inside.view(output.shape[:-1])[..., None]
    )
    log_p = prediction.log_probs(prediction.everything())[0]
    hook.remove()
    return log_p, None


@pytest.mark.parametrize("steps", [2, 20])
def test_gradients_agree_with_captum(bert, steps):
    attr = pytest.importorskip("captum.attr")
    ids = torch.tensor([bert.ids])
    embedded = bert.model.embed.tokens(ids).detach()

    def log_p(x):
        hook = bert.model.embed.tokens.register_forward_hook(lambda module, args, output: x)
        logits = bert.model.predict(ids.expand(len(x), -1), torch.full((len(x),), ids.shape[1]))
        hook.remove()
        return logits.log_softmax(-1)[:, bert.classes[0]]

    baseline = embedded.clone()
    baseline[:, 1:-1] = 0
    integrated = attr.IntegratedGradients(log_p, multiply_by_inputs=True).attribute(
        embedded, baselines=baseline, n_steps=steps, method="riemann_middle"
    )
    mine = attribute(bert, "integrated_gradients", AttributionOptions(steps=steps))[0]
    torch.testing.assert_close(mine, integrated.sum(-1)[0, 1:-1].float(), atol=1e-5, rtol=1e-4)
    product = attr.InputXGradient(log_p).attribute(embedded.requires_grad_()).sum(-1)[0, 1:-1]
    torch.testing.assert_close(attribute(bert, "gradient")[0], product.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PREDICTIONS)
def test_removing_no_unit_changes_nothing_and_every_method_scores_every_unit(name):
    prediction = PREDICTIONS[name]()
    whole = prediction.log_probs(prediction.everything(3))
    torch.testing.assert_close(whole, whole[:1].expand(3, -1))
    nothing = prediction.log_probs(~prediction.everything())
    assert nothing.isfinite().all()
    for method in METHODS:
        if (method == "rollout" and not prediction.self_layers) or (method in NEED_ATTENTION and not prediction.layers):
            with pytest.raises(InputError, match=method):
                attribute(prediction, method)
            continue
        scores = attribute(prediction, method)
        assert scores.shape == (len(prediction.outputs), len(prediction.units)), method
        assert scores.isfinite().all(), method


def test_words_and_sentences_of_a_document():
    words, sentences = document("word"), document("sentence")
    assert words.units[:4] == ("A", "fine", "film", ".")
    assert sentences.units == ("A fine film.", "The cat was good, and the dog was fine.", "I left.")
    by_sentence = attribute(sentences, "attention")[0]
    by_word = attribute(words, "attention")[0]
    assert float(by_sentence.sum()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(by_word[:4].sum(), by_sentence[0])


def test_removal_of_a_sentence_equals_the_document_without_it():
    prediction = document("sentence")
    keep = torch.tensor([[True, False, True]])
    model, words = prediction.model, prediction.words
    with torch.no_grad():
        expected = model.predict(words[None, [0, 2]], torch.tensor([2])).log_softmax(-1)[:, prediction.classes]
    torch.testing.assert_close(prediction.log_probs(keep), expected)


def test_removal_of_a_region_gives_it_the_mean_color():
    prediction = caption()
    assert prediction.units == ("1,1", "1,2", "2,1", "2,2")
    image = prediction.image.clone()
    image[:, :, :4, 4:] = prediction.image.mean(dim=(2, 3), keepdim=True)
    expected = prediction.chosen(prediction.predict(image)).detach()
    torch.testing.assert_close(prediction.log_probs(torch.tensor([[True, False, True, True]])), expected)


def test_the_next_token_is_that_of_the_generator():
    prediction = next_token()
    generator = prediction.generator
    assert prediction.text == generator("abcda", max_new_tokens=1, temperature=0.0).text
    assert prediction.outputs[0] == prediction.text[-1] == prediction.labels[0].text
    probabilities = [label.probability for label in prediction.labels]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1.0)  # of all letters; special tokens are not generated
    assert prediction.log_probs(prediction.everything()).exp().item() == pytest.approx(probabilities[0])


@pytest.mark.parametrize("model_class", [GPT2, Llama, RNNLM])
def test_removal_of_a_token_equals_the_prompt_without_it(model_class):
    prediction = next_token(model_class)
    tokenizer, model = prediction.generator.tokenizer, prediction.model
    keep = torch.ones(6, 5, dtype=torch.bool)
    keep[torch.arange(5), torch.arange(5)] = False
    for variant, text in enumerate(("bcda", "acda", "abda", "abca", "abcd", "abcda")):
        logits = model(torch.tensor([tokenizer.encode(text)]))[0, -1]
        logits[prediction.generator.suppressed] = logits[len(tokenizer) :] = -torch.inf
        torch.testing.assert_close(
            prediction.log_probs(keep)[variant, 0], logits.log_softmax(-1)[prediction.classes[0]].detach()
        )


def test_attention_of_the_next_token_is_that_of_the_last_token():
    prediction = next_token()
    with torch.no_grad(), watch(prediction.model) as records:
        prediction.forward(prediction.everything())
    layers = [record.weights[0].mean(0) for record in records.values()]
    torch.testing.assert_close(attribute(prediction, "attention")[0], layers[1][-1])
    torch.testing.assert_close(attribute(prediction, "rollout")[0], roll_out(layers)[-1])


def test_a_target_of_a_language_model_is_one_token():
    assert next_token(target="f").outputs == ("f",)
    for target in ("ff", "", "é"):
        with pytest.raises(InputError, match="one token"):
            next_token(target=target)


def test_attention_of_the_mean_over_the_patches_is_averaged():
    prediction = image(pool="mean")
    weights = prediction.record()["encoder.1"].weights[0].mean(0)
    torch.testing.assert_close(attribute(prediction, "attention")[0], weights[1:, 1:].mean(0))
    torch.testing.assert_close(
        attribute(image(), "attention")[0], image().record()["encoder.1"].weights[0].mean(0)[0, 1:]
    )


def test_an_image_of_another_size_is_an_error():
    pixels = torch.zeros(1, 16, 24, dtype=torch.uint8).numpy()
    with pytest.raises(InputError, match="16, 24"):
        ImageClassification(ImageClassifier(image().model, device="cpu"), NamedImage("large", pixels))


def test_weights_of_averaged_queries_cannot_be_replaced():
    with pytest.raises(InputError, match="averaged"):
        reweight(image(pool="mean"))


def test_removal_of_a_patch_gives_it_the_mean_color():
    prediction = image()
    assert prediction.units == ("1,1", "1,2", "1,3", "2,1", "2,2", "2,3")
    masked = prediction.image.clone()
    masked[:, :, 4:, 4:8] = prediction.image.mean()
    keep = torch.tensor([[True, True, True, True, False, True]])
    expected = prediction.model(masked).log_softmax(-1)[0, prediction.classes].detach()
    torch.testing.assert_close(prediction.log_probs(keep)[0], expected)
    assert not torch.allclose(expected, prediction.log_probs(prediction.everything())[0])


def test_random_scores_depend_on_the_seed_only():
    prediction = Sum([1.0, 2.0, 3.0])
    first = attribute(prediction, "random", AttributionOptions(seed=1))
    assert first.equal(attribute(prediction, "random", AttributionOptions(seed=1)))
    assert not first.equal(attribute(prediction, "random", AttributionOptions(seed=2)))


def test_names_of_methods_are_checked():
    assert check_methods(["gradient", "all", "gradient"])[0] == "gradient"
    assert sorted(check_methods(["all"])) == sorted(METHODS)
    with pytest.raises(InputError, match="integrated_gradients"):
        check_methods(["integrated_gradient"])


def test_a_model_without_attention_says_so():
    with pytest.raises(InputError, match="no attention"):
        attribute(document_without_attention(), "attention")


def test_gradients_of_int8_weights():
    explanation = qkv.explain("tatoeba-en-de", "Good morning!", method="gradient")  # the packaged weights are int8
    dequantized = qkv.load("tatoeba-en-de", dequantize=True)
    assert np.array_equal(explanation.scores, qkv.explain(dequantized, "Good morning!", method="gradient").scores)
    assert np.abs(explanation.scores).min() > 0
    with pytest.raises(InputError, match="dequantize"):
        qkv.explain(qkv.load("tatoeba-en-de"), "Good morning!", method="gradient")


def document_without_attention() -> DocumentClassification:
    tokenizer = WordTokenizer.train(["A fine film."])
    model = random_weights(HAN(HANConfig(vocab_size=len(tokenizer), embedding_dim=4, hidden_dim=3, pooling="mean")))
    return DocumentClassification(Classifier(model, tokenizer, device="cpu"), "A fine film.")


def test_explain_returns_scores_of_one_or_all_outputs(tmp_path):
    model = tiny_bert("classifier", labels=3, label_names=("a", "b", "c"))
    model.tokenizer = tiny_tokenizer(tmp_path)
    explanation = qkv.explain(model, BERT_TEXT, method="gradient", target="b")
    assert explanation.units == ("the", "cat", "sat", "on", "a", "mat")
    assert explanation.explained.spaced == (False, True, True, True, True, True)
    assert explanation.outputs == ("b",)
    assert explanation.scores.shape == (6,)
    assert explanation.prediction in ("a", "b", "c")
    assert len(explanation.faithfulness) == 1
    assert len(repr(explanation)) < 120
    translated = translation()
    translated.model.tokenizer = translated.tokenizer
    explanation = qkv.explain(translated.model, "abcde")
    assert explanation.scores.shape == (len(translated.outputs), 5)
    assert qkv.explain(translated.model, "abcde", target="1").scores.shape == (5,)
    with pytest.raises(InputError, match="unit"):
        qkv.explain(translated.model, "abcde", unit="sentence")
    with pytest.raises(InputError, match="cannot be explained"):
        qkv.explain(tiny_bert("tagger", labels=3), BERT_TEXT)
