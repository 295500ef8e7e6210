"""Requests that Schemathesis generates from the OpenAPI description: no answer has a status of 500 or more."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

MODELS = ["gpt", "transformer", "classifier", "tagger", "answerer", "filler", "captioner", "stories", "lstm", "none"]
OPTIONS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


def check_generated(client, requests):
    """Send valid and invalid requests to all endpoints; count the answers by status."""
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    statuses: Counter[int] = Counter()
    with_body = [operation for operation in operations if operation.method == "post"]
    count = -(-requests // (len(with_body) * len(modes)))
    for operation in operations:
        for mode in modes if operation in with_body else modes[:1]:
            strategies = operation.as_strategy(generation_mode=mode), st.sampled_from(MODELS)
            given(*strategies)(settings(max_examples=count, **OPTIONS)(sender(client, operation, statuses)))()
    return statuses


def sender(client, operation, statuses):
    """Return a function that sends a generated request."""

    def send(case, model):
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = model  # a random name would end every request with 404
        arguments = case.as_transport_kwargs(base_url="http://testserver")
        response = client.request(**{name: value for name, value in arguments.items() if name != "timeout"})
        statuses[response.status_code] += 1
        assert response.status_code < 500, (operation.label, case.body, response.text)

    return send


def test_generated_requests_have_no_server_error(client):
    statuses = check_generated(client, 200)
    assert sum(statuses.values()) >= 200
    assert {200, 400} <= statuses.keys()


@pytest.mark.slow
def test_2000_generated_requests_have_no_server_error(client):
    statuses = check_generated(client, 2000)
    assert sum(statuses.values()) >= 2000
