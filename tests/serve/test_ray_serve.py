"""The deployment on a Ray cluster of this machine answers as the server does."""

import importlib.util
import subprocess
import sys

import pytest
from pydantic import ValidationError

import qkv

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

# In a process of its own: Ray reads the environment, with the token of the cluster, when it is imported.
CODE = """
import json, socket, sys, urllib.request
from qkv.runtime.cluster import WorkerOptions, start_ray

ray = start_ray(WorkerOptions(count=3, ray=True))
from ray import serve
from qkv.serve.ray_serve import build

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(build({"models": sys.argv[1], "replicas": "2", "cpus": "1", "device": "cpu"}), name="qkv", route_prefix="/")
for seed in range(6):
    body = json.dumps({"model": "gpt", "prompt": "to be", "max_tokens": 10, "seed": seed, "temperature": 2.0}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        print(json.load(response)["choices"][0]["text"])
serve.shutdown()
ray.shutdown()
"""


@pytest.mark.parametrize(
    "arguments", [{}, {"models": "a", "replica": "2"}, {"models": "a", "max_batch": "0"}, {"models": "a", "cpus": "0"}]
)
def test_arguments_of_serve_run_are_checked(arguments):
    from qkv.serve.ray_serve import build

    with pytest.raises(ValidationError):
        build(arguments)


@pytest.mark.slow
def test_two_replicas_answer_with_the_texts_of_the_generator(folders):
    command = [sys.executable, "-c", CODE, str(folders["gpt"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    generator = qkv.Generator(folders["gpt"], device="cpu")
    expected = [generator("to be", max_new_tokens=10, seed=seed, temperature=2.0).continuation for seed in range(6)]
    assert done.stdout.splitlines()[:6] == expected  # Ray may print more when it stops
