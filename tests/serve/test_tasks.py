"""The endpoints of single tasks return the answers of the pipelines, alone and in batches."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import qkv
from qkv.errors import TruncationWarning

TEXTS = ["a good film.", "bad", "the cat sat on the mat, the dog on the cat.", "playing dogs!", "good good good", "Zzz"]


def post(client, path, **body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("model", ["transformer", "gru"])
@pytest.mark.parametrize("beams", [1, 3])
def test_translate(client, folders, model, beams):
    texts = ["the cat", "a dog", "good cat, bad dog"]
    options = {"num_beams": beams, "num_return_sequences": beams, "length_penalty": 0.7, "max_new_tokens": 12}
    answer = post(client, "/translate", model=model, input=texts, **options)
    expected = qkv.Translator(folders[model], device="cpu")(texts, **options)
    for result, best in zip(answer["results"], expected, strict=True):
        best = best if isinstance(best, list) else [best]
        assert [found["text"] for found in result["translations"]] == [one.text for one in best]
        assert [found["score"] for found in result["translations"]] == pytest.approx([one.score for one in best])
    assert post(client, "/translate", model=model, input="cab!", prefix="the")["results"][0]["unknown"] == ["!"]


def test_concurrent_requests_have_the_answers_of_requests_alone(client):
    bodies = [("/translate", {"model": "transformer", "input": text, "num_beams": n % 3 + 1, "max_new_tokens": 10 + n})
              for n, text in enumerate(["the cat", "a dog lives", "bad", "good cat, bad dog"] * 3)]  # fmt: skip
    bodies += [("/classify", {"input": text}) for text in TEXTS * 2]
    bodies += [("/v1/embeddings", {"model": "classifier", "input": text}) for text in TEXTS]
    bodies += [("/fill", {"input": f"{text} [MASK]"}) for text in TEXTS]
    bodies += [("/tag", {"input": [text, "ada lives in paris"]}) for text in TEXTS]
    bodies += [("/answer", {"model": "answerer", "question": "the cat?", "context": text}) for text in TEXTS]
    alone = [post(client, path, **body) for path, body in bodies]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda call: post(client, call[0], **call[1]), bodies))
    assert together == alone


def test_classify(client, folders):
    expected = qkv.Classifier(folders["classifier"], device="cpu")(TEXTS)
    results = post(client, "/classify", input=TEXTS)["results"]
    assert [result["label"] for result in results] == [one.label for one in expected]
    for result, one in zip(results, expected, strict=True):
        assert result["probabilities"] == pytest.approx(one.probabilities)
        assert result["probability"] == pytest.approx(one.score)


@pytest.mark.parametrize(("path", "field"), [("/classify", "results"), ("/v1/embeddings", "data")])
def test_long_texts_are_refused_unless_they_may_be_truncated(client, folders, path, field):
    longest = qkv.Classifier(folders["classifier"], device="cpu").max_tokens
    short, long = " ".join(["good"] * longest), " ".join(["good"] * (longest + 1))
    body = {"model": "classifier", "input": [short, long]}
    refused = client.post(path, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"] | {"message": ""} == {
        "message": "", "type": "invalid_request_error", "param": "input", "code": "context_length_exceeded",
    }  # fmt: skip
    assert "input 2" in refused.json()["error"]["message"]
    with pytest.warns(TruncationWarning):
        answer = post(client, path, **body, truncate=True)
    first, second = (item.get("embedding", [*item.get("probabilities", {}).values()]) for item in answer[field])
    assert second == pytest.approx(first)


def test_tag(client, folders):
    text = "Ada lives in Paris, the dog doesn't."
    expected = qkv.Tagger(folders["tagger"], device="cpu")(text)
    (result,) = post(client, "/tag", input=text)["results"]
    assert result["words"] == list(expected.words)
    assert result["tags"] == list(expected.tags)
    assert [text[start:end] for start, end in result["offsets"]] == result["words"]
    assert [entity["text"] for entity in result["entities"]] == [entity.text for entity in expected.entities]


def test_answer(client, folders):
    question, context = "The cat sat on?", "the good cat sat on a mat. a bad dog lives in the film!"
    expected = qkv.QuestionAnswerer(folders["answerer"], device="cpu")(question, context, top_k=3)
    answer = post(client, "/answer", model="answerer", question=question, context=context, top_k=3)
    assert answer["answer"] == expected.text
    assert [context[span["start"] : span["end"]] for span in answer["candidates"]] == [
        span.text for span in expected.candidates
    ]
    story = {"question": "Where is Mary?", "context": "Mary went to the garden. Mary went to the office."}
    expected = qkv.StoryAnswerer(folders["stories"], device="cpu")(story["question"], story["context"])
    answer = post(client, "/answer", model="stories", top_k=2, **story)
    assert answer["answer"] == expected.text
    assert answer["probability"] == pytest.approx(expected.probabilities[expected.text])
    assert len(answer["candidates"]) == 2


def test_fill(client, folders):
    text = "The [MASK] sat on the [MASK]."
    expected = qkv.MaskFiller(folders["filler"], device="cpu")(text, top_k=3)
    (result,) = post(client, "/fill", input=text, top_k=3)["results"]
    assert result["filled"] == expected.filled
    assert [[guess["word"] for guess in mask] for mask in result["masks"]] == [
        [guess.word for guess in mask] for mask in expected.guesses
    ]


def test_caption(client, folders, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "png")
    (tmp_path / "scene.png").write_bytes(data.getvalue())
    image = base64.b64encode(data.getvalue()).decode()
    expected = qkv.Captioner(folders["captioner"], device="cpu")(
        tmp_path / "scene.png", num_beams=3, num_return_sequences=2
    )
    for text in (image, f"data:image/png;base64,{image}"):
        answer = post(client, "/caption", image=text, num_beams=3, num_return_sequences=2)
        assert [found["text"] for found in answer["captions"]] == [one.text for one in expected]


@pytest.mark.parametrize("image", ["", "%%%", "bm8gaW1hZ2U=", "data:image/png;base64,"])
def test_what_is_not_an_image_is_refused(client, image):
    response = client.post("/caption", json={"image": image})
    assert response.status_code == 400
    assert "image" in response.json()["error"]["message"]
    assert "/tmp" not in response.text


def test_embeddings_equal_those_of_the_embedder(client, folders):
    expected = qkv.Embedder(folders["classifier"], device="cpu")(TEXTS).numpy()
    body = {"model": "classifier", "input": TEXTS}
    numbers = post(client, "/v1/embeddings", **body)
    found = np.array([item["embedding"] for item in numbers["data"]], dtype=np.float32)
    assert np.allclose(found, expected, atol=1e-6)
    packed = post(client, "/v1/embeddings", **body, encoding_format="base64")["data"]
    assert np.array_equal(np.frombuffer(base64.b64decode(packed[2]["embedding"]), "<f4"), found[2])
    tokenizer = qkv.load(folders["classifier"]).tokenizer
    assert numbers["usage"]["prompt_tokens"] == sum(map(len, tokenizer.encode(TEXTS)))


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/translate", {"model": "transformer", "input": " "}, 400, "empty"),
        ("/translate", {"model": "transformer", "input": "cat" * 20}, 400, "at most 40"),
        ("/translate", {"model": "transformer", "input": "cat", "num_return_sequences": 2}, 400, "num_beams"),
        ("/translate", {"model": "transformer", "input": "cat", "target": "de"}, 400, "language"),
        ("/translate", {"model": "gpt", "input": "cat"}, 400, "/v1/completions"),
        ("/translate", {"input": "cat"}, 400, "gru, transformer"),
        ("/classify", {"input": []}, 400, "no texts"),
        ("/classify", {"input": ["a"] * 17}, 400, "limit of 16"),
        ("/classify", {"image": "xx"}, 400, "texts"),
        ("/fill", {"input": "no mask"}, 400, "mask"),
        ("/answer", {"model": "answerer", "question": " ", "context": "x"}, 400, "empty"),
        ("/v1/embeddings", {"model": "filler", "input": "a", "dimensions": 3}, 400, "dimensions"),
        ("/v1/embeddings", {"model": "gpt", "input": "a"}, 400, "/v1/completions"),
        ("/attention", {"model": "lstm", "input": "a"}, 400, "/v1/completions"),
    ],
)
def test_errors_say_what_to_do(client, path, body, status, word):
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    assert word in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/translate", {"model": "transformer", "input": "cat" * 50}, "input"),
        ("/translate", {"model": "gru", "input": ["cat", "cat" * 14]}, "input"),
        ("/classify", {"input": "good " * 500}, "input"),
        ("/v1/embeddings", {"model": "classifier", "input": "good " * 500}, "input"),
        ("/fill", {"input": "good " * 500 + "[MASK]"}, "input"),
        ("/v1/completions", {"model": "gpt", "prompt": "to be " * 40, "max_tokens": 1}, "prompt"),
    ],
)
def test_too_long_inputs_have_one_code(client, path, body, param):
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"] | {"message": ""} == {
        "message": "", "type": "invalid_request_error", "param": param, "code": "context_length_exceeded",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/translate", {"model": "transformer", "input": " "}, "input"),
        ("/translate", {"model": "transformer", "input": "cat", "target": "de"}, "target"),
        ("/translate", {"model": "transformer", "input": "cat", "prefix": "%"}, "prefix"),
        ("/classify", {"input": ["a", ""]}, "input"),
        ("/tag", {"input": " "}, "input"),
        ("/fill", {"input": "no mask"}, "input"),
        ("/v1/embeddings", {"model": "filler", "input": ""}, "input"),
        ("/v1/completions", {"model": "gpt", "prompt": ""}, "prompt"),
        ("/answer", {"model": "answerer", "question": " ", "context": "x"}, "question"),
        ("/answer", {"model": "answerer", "question": "x" * 70_000, "context": "x"}, "question"),
        ("/answer", {"model": "stories", "question": "x", "context": " "}, "context"),
        ("/attention", {"model": "gpt", "input": ""}, "input"),
        ("/attention", {"model": "gpt", "input": "to", "options": {"mask": [9]}}, "options.mask"),
        ("/caption", {"image": "bm8gaW1hZ2U="}, "image"),
    ],
)
def test_errors_of_an_input_name_its_field(client, path, body, param):
    error = client.post(path, json=body).json()["error"]
    assert (error["param"], error["code"]) == (param, None)


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/translate", {"text": "Good morning."}, "input"),
        ("/translate", {"input": "a", "num_beam": 2}, "num_beams"),
        ("/translate", {"targets": "de"}, "target"),
        ("/classify", {"text": "a"}, "input"),
        ("/v1/completions", {"model": "gpt", "text": "a"}, "prompt"),
        ("/answer", {"question": "a", "text": "b"}, "context"),
    ],
)
def test_an_unknown_field_is_a_misspelling_or_meant_for_the_missing_input(client, path, body, meant):
    assert f"(did you mean {meant}?)" in client.post(path, json=body).json()["error"]["message"]


def test_one_bad_text_fails_alone(client):
    """Texts of several requests are run together; an error of one must not reach the others."""
    inputs = ["the [MASK]", "no mask", "a [MASK]", "bad [MASK]", "none"] * 4
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda text: client.post("/fill", json={"input": text}).status_code, inputs))
    assert found == [200 if "[MASK]" in text else 400 for text in inputs]
