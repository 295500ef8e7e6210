"""Decoding speed compared with transformers and CTranslate2, contenders interleaved in one run.

    python -m benchmarks.decoding                         on the CPU: GPT-2 124M and a Marian-size Transformer
    python -m benchmarks.decoding --cases gpt2-b1 --rounds 5 --contenders qkv-int8,ct2-int8
    python -m benchmarks.decoding --models FOLDER         checkpoints of the peers [.peers/models]

Each contender is a process of its own that loads its model, warms up, and then runs a case whenever it is its turn.
Weights are random: GPT-2 124M continues prompts of 32 tokens by 128, or reads one of 512; the Transformer (6 + 6
layers, width 512, vocabulary 10,000) decodes 32 sentences of 15 to 25 tokens into exactly 40. Before a speed is
printed, the tokens of all float32 contenders are compared: they must be the same, or 95 % of them in beam search, where
libraries differ in whether the end token counts in the score. FOLDER holds transformers' folders gpt2 and marian (made
if missing) and CTranslate2's conversions gpt2-ct2-int8 and so on; a contender whose library or folder is missing is
left out and named.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = os.cpu_count() or 1
PROMPT, NEW, LONG = 32, 128, 512
SENTENCES, TARGET, VOCABULARY = 32, 40, 10_000
CASES = {  # tokens of a run
    "gpt2-b1": NEW,
    "gpt2-b8": 8 * NEW,
    "gpt2-prefill": LONG,
    "marian-greedy": SENTENCES * TARGET,
    "marian-beam4": SENTENCES * TARGET,
}
CONTENDERS = (
    "qkv-float32", "qkv-bfloat16", "qkv-int8", "transformers-float32", "transformers-bfloat16",
    "ct2-float32", "ct2-int8", "ct2x2-int8",
)  # fmt: skip
LEAST_AGREEMENT = {"marian-beam4": 0.95}  # of float32 contenders; 1 elsewhere
Run = Callable[[], list[list[int]]]  # returns the tokens of each sequence


def prompts(batch: int, length: int) -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(50_000) for _ in range(length)] for _ in range(batch)]


def sources() -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(2, 9000) for _ in range(generator.randint(14, 24))] + [0] for _ in range(SENTENCES)]


def qkv_cases(models: Path, dtype: Any) -> dict[str, Run]:
    import qkv
    from qkv.generation import Engine, GenerationConfig, Request, Tokens

    gpt2, marian = (Engine.build(qkv.load(models / name), dtype) for name in ("gpt2", "marian"))

    def generate(batch: int, length: int, new: int) -> Run:
        requests = [Request(prompt, new) for prompt in prompts(batch, length)]
        return lambda: decoded(gpt2.decode(requests, Tokens(None), GenerationConfig()))

    def translate(beams: int) -> Run:
        requests = [Request([9999], TARGET, TARGET, source=source) for source in sources()]
        return lambda: decoded(marian.decode(requests, Tokens(0, [9999]), GenerationConfig(num_beams=beams)))

    def decoded(results: Any) -> list[list[int]]:
        hypotheses = dict(results)
        return [list(hypotheses[index][0].tokens) for index in range(len(hypotheses))]

    return {
        "gpt2-b1": generate(1, PROMPT, NEW),
        "gpt2-b8": generate(8, PROMPT, NEW),
        "gpt2-prefill": generate(1, LONG, 1),
        "marian-greedy": translate(1),
        "marian-beam4": translate(4),
    }


def transformers_cases(models: Path, dtype: str) -> dict[str, Run]:
    import torch
    from transformers import GPT2LMHeadModel, MarianMTModel

    gpt2 = GPT2LMHeadModel.from_pretrained(models / "gpt2", dtype=getattr(torch, dtype)).eval()
    marian = MarianMTModel.from_pretrained(models / "marian", dtype=getattr(torch, dtype)).eval()
    gpt2.generation_config.eos_token_id, gpt2.generation_config.pad_token_id = None, 0
    config = marian.generation_config
    config.forced_eos_token_id = config.eos_token_id = config.bad_words_ids = config.max_length = None

    def generate(batch: int, length: int, new: int) -> Run:
        ids = torch.tensor(prompts(batch, length))
        mask = torch.ones_like(ids)

        @torch.inference_mode()
        def run() -> list[list[int]]:
            return gpt2.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False)[:, length:].tolist()

        return run

    def translate(beams: int) -> Run:
        longest = max(map(len, sources()))
        ids = torch.tensor([source + [9999] * (longest - len(source)) for source in sources()])
        mask = (ids != 9999).long()

        @torch.inference_mode()
        def run() -> list[list[int]]:
            out = marian.generate(
                input_ids=ids, attention_mask=mask, num_beams=beams, do_sample=False, max_new_tokens=TARGET
            )
            return out[:, 1:].tolist()

        return run

    return {
        "gpt2-b1": generate(1, PROMPT, NEW),
        "gpt2-b8": generate(8, PROMPT, NEW),
        "gpt2-prefill": generate(1, LONG, 1),
        "marian-greedy": translate(1),
        "marian-beam4": translate(4),
    }


def ct2_cases(models: Path, dtype: str, workers: int) -> dict[str, Run]:
    import ctranslate2

    threads = {"intra_threads": max(1, THREADS // workers), "inter_threads": workers}
    gpt2 = ctranslate2.Generator(str(models / f"gpt2-ct2-{dtype}"), compute_type=dtype, **threads)
    marian = ctranslate2.Translator(str(models / f"marian-ct2-{dtype}"), compute_type=dtype, **threads)

    def generate(batch: int, length: int, new: int) -> Run:
        texts = [[f"t{token}" for token in prompt] for prompt in prompts(batch, length)]
        options = {"max_length": new, "min_length": new, "sampling_topk": 1, "include_prompt_in_result": False}
        return lambda: [result.sequences_ids[0] for result in gpt2.generate_batch(texts, **options)]

    def translate(beams: int) -> Run:
        names = {0: "</s>", 1: "<unk>"}
        texts = [[names.get(token, f"t{token}") for token in source] for source in sources()]
        options = {"max_decoding_length": TARGET, "min_decoding_length": TARGET}
        size = SENTENCES // workers if workers > 1 else 0

        def run() -> list[list[int]]:
            results = marian.translate_batch(texts, beam_size=beams, max_batch_size=size, **options)
            return [[int(piece[1:]) for piece in result.hypotheses[0]] for result in results]

        return run

    return {
        "gpt2-b1": generate(1, PROMPT, NEW),
        "gpt2-b8": generate(8, PROMPT, NEW),
        "gpt2-prefill": generate(1, LONG, 1),
        "marian-greedy": translate(1),
        "marian-beam4": translate(4),
    }


def serve(name: str, models: Path) -> None:
    """Run cases as they are named on standard input, and answer with one line of JSON each."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to standard output
    library, dtype = name.split("-")
    try:
        if library == "qkv":
            cases = qkv_cases(models, dtype)
        elif library == "transformers":
            cases = transformers_cases(models, dtype)
        else:
            cases = ct2_cases(models, dtype, 2 if library == "ct2x2" else 1)
    except Exception as error:  # a library or a checkpoint that is not there
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        begin = time.perf_counter()
        tokens = cases[line.strip()]()
        print(
            json.dumps({"seconds": time.perf_counter() - begin, "tokens": tokens, "mib": peak_memory()}), file=answers
        )


def peak_memory() -> int:
    """Peak resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Contender:
    """A contender in its own process."""

    def __init__(self, name: str, models: Path) -> None:
        self.name = name
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "QKV_CHECK_SHAPES": "0", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.decoding", "--worker", name, "--models", str(models)]
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ready = self._answer()

    def run(self, case: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}


def agreement(tokens: list[list[int]], reference: list[list[int]]) -> float:
    """Share of equal tokens up to the first difference of each sequence."""
    equal = total = 0
    for ours, theirs in zip(tokens, reference, strict=True):
        same = [a == b for a, b in zip(ours, theirs, strict=False)]
        equal += same.index(False) if False in same else len(same)
        total += len(theirs)
    return equal / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path(".peers/models"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        serve(options.worker, options.models)
        return
    make_models(options.models)
    contenders = []
    for name in options.contenders.split(","):
        contender = Contender(name, options.models)
        if "error" in contender.ready:
            print(f"left out: {name} ({contender.ready['error']})")
        else:
            contenders.append(contender)
    for case in options.cases.split(","):
        compare(case, contenders, options.rounds)


def compare(case: str, contenders: list[Contender], rounds: int) -> None:
    """Print the speed of each contender, and its median ratio to the others within a round."""
    tokens, memory = {}, {}
    for contender in contenders:
        answer = contender.run(case)  # also warms up
        tokens[contender.name], memory[contender.name] = answer["tokens"], answer["mib"]
    exact = [name for name in tokens if name.endswith("float32")]
    for name in exact[1:]:
        share = agreement(tokens[name], tokens[exact[0]])
        if share < LEAST_AGREEMENT.get(case, 1.0):
            print(f"{case}: {name} and {exact[0]} agree on {share:.1%} of the tokens only; no speed is printed")
            return
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in random.Random(number).sample(contenders, len(contenders)):
            times[contender.name].append(contender.run(case)["seconds"])
    for name, seconds in times.items():
        ratios = {
            other: statistics.median(b / a for a, b in zip(seconds, times[other], strict=True))
            for other in times
            if other != name and name.startswith("qkv")
        }
        row: dict[str, Any] = {
            "case": case,
            "who": name,
            "tokens_per_s": round(CASES[case] / statistics.median(seconds), 1),
        }
        row |= {"seconds": round(statistics.median(seconds), 4), "mib": memory[name]}
        if exact:
            row["agrees"] = round(agreement(tokens[name], tokens[exact[0]]), 3)
        row |= {f"x {other}": round(ratio, 2) for other, ratio in ratios.items()}
        print(json.dumps(row), flush=True)


def make_models(models: Path) -> None:
    """Write random checkpoints of transformers, unless they are there."""
    if (models / "gpt2" / "config.json").exists() and (models / "marian" / "config.json").exists():
        return
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(models / "gpt2")
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=9999,
        decoder_start_token_id=9999, eos_token_id=0, forced_eos_token_id=0, max_position_embeddings=512,
        activation_function="relu", scale_embedding=True,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(models / "marian")


if __name__ == "__main__":
    main()
