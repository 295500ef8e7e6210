"""Decoding speed compared with transformers, CTranslate2 and JoeyNMT, contenders interleaved in one run.

    python -m benchmarks.decoding                         on the GPU if there is one, else on the CPU
    python -m benchmarks.decoding --device cpu            GPT-2 124M and a Marian-size Transformer
    python -m benchmarks.decoding --cases gpt2-b1 --rounds 5 --contenders qkv-int8,ct2-int8
    python -m benchmarks.decoding --models FOLDER         checkpoints of the peers [.peers/models]

Each contender is a process of its own that loads its model, warms up, and then runs a case whenever it is its turn.
Weights are random: GPT-2 124M continues prompts of 32 tokens by 128, or reads one of 512; the Transformer (6 + 6
layers, width 512, vocabulary 10,000) decodes 32 sentences of 15 to 25 tokens into exactly 40. On a GPU, one of the size
of multi30k-transformer (4 + 4 layers, width 128, vocabulary 10,000) decodes 1,000 sentences of 9 to 26 tokens likewise.
A GRU with additive attention (embeddings of 256, states of 512, vocabulary 8,000) decodes 256 sentences into 15 tokens.

    qkv            the engine
    simple         qkv's simple searches, which define the results
    transformers   `generate`; sentences 64 at a time
    whole          the same with all sentences at once
    static         the same with a static cache, which transformers compiles
    joeynmt        its own GRU with additive attention of the same size and other random weights; sentences 64 at a time

Before a speed is printed, the tokens of all float32 contenders are compared: they must be the same, or 95 % of them in
beam search, where libraries differ in whether the end token counts in the score. FOLDER holds transformers' folders
gpt2, marian and multi30k (made if missing) and CTranslate2's conversions gpt2-ct2-int8 and so on; a contender whose
library or folder is missing is left out and named.
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
from functools import cache
from pathlib import Path
from typing import Any

THREADS = os.cpu_count() or 1
PROMPT, NEW, LONG = 32, 128, 512
SENTENCES, TARGET, VOCABULARY = 32, 40, 10_000
MANY = 1000
GRU_SENTENCES, GRU_TARGET, GRU_VOCABULARY, GRU_EMBEDDING, GRU_HIDDEN = 256, 15, 8000, 256, 512
TOKENS = {  # of a run
    "gpt2-b1": NEW,
    "gpt2-b8": 8 * NEW,
    "gpt2-b64": 64 * NEW,
    "gpt2-prefill": LONG,
    "marian-greedy": SENTENCES * TARGET,
    "marian-beam4": SENTENCES * TARGET,
    "multi30k-beam5": MANY * TARGET,
    "gru-beam5": GRU_SENTENCES * GRU_TARGET,
}
CASES = {
    "cpu": ("gpt2-b1", "gpt2-b8", "gpt2-prefill", "marian-greedy", "marian-beam4", "gru-beam5"),
    "cuda": ("gpt2-b1", "gpt2-b8", "gpt2-b64", "multi30k-beam5", "gru-beam5"),
}
CONTENDERS = {
    "cpu": (
        "qkv-float32", "qkv-bfloat16", "qkv-int8", "transformers-float32", "transformers-bfloat16",
        "ct2-float32", "ct2-int8", "ct2x2-int8", "joeynmt-own",
    ),
    "cuda": (
        "qkv-float32", "qkv-bfloat16", "qkv-int8", "simple-float32", "transformers-bfloat16", "whole-bfloat16",
        "static-bfloat16",
    ),
}  # fmt: skip
LEAST_AGREEMENT = {"marian-beam4": 0.95, "multi30k-beam5": 0.95}  # of float32 contenders; 1 elsewhere
LEAST_AGREEMENT_GPU = 0.98  # elsewhere: the sums of a GPU depend on the size of the batch
Run = Callable[[], list[list[int]]]  # returns the tokens of each sequence


def prompts(batch: int, length: int) -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(50_000) for _ in range(length)] for _ in range(batch)]


def sources(count: int = SENTENCES) -> list[list[int]]:
    generator, (shortest, longest) = random.Random(0), (14, 24) if count == SENTENCES else (8, 25)
    lengths = [generator.randint(shortest, longest) for _ in range(count)]
    return [[generator.randrange(2, 9000) for _ in range(length)] + [0] for length in lengths]


def cases(generate: Callable[[int, int, int], Run], translate: Callable[[str, int, int], Run]) -> dict[str, Run]:
    """Return the cases of a contender; models are loaded when a case first runs."""
    return {
        "gpt2-b1": generate(1, PROMPT, NEW),
        "gpt2-b8": generate(8, PROMPT, NEW),
        "gpt2-b64": generate(64, PROMPT, NEW),
        "gpt2-prefill": generate(1, LONG, 1),
        "marian-greedy": translate("marian", SENTENCES, 1),
        "marian-beam4": translate("marian", SENTENCES, 4),
        "multi30k-beam5": translate("multi30k", MANY, 5),
    }


def qkv_cases(models: Path, device: str, dtype: Any) -> dict[str, Run]:
    import qkv
    from qkv.generation import Engine, GenerationConfig, Request, Tokens

    @cache
    def engine(name: str) -> Engine:
        return Engine.build((gru() if name == "gru" else qkv.load(models / name)).to(device), dtype)

    def generate(batch: int, length: int, new: int) -> Run:
        requests = [Request(prompt, new) for prompt in prompts(batch, length)]
        return lambda: decoded(engine("gpt2").decode(requests, Tokens(None), GenerationConfig()))

    def translate(model: str, sentences: int, beams: int) -> Run:
        requests = [Request([9999], TARGET, TARGET, source=source) for source in sources(sentences)]
        config = GenerationConfig(num_beams=beams)
        return lambda: decoded(engine(model).decode(requests, Tokens(0, [9999]), config))

    def decoded(results: Any) -> list[list[int]]:
        hypotheses = dict(results)
        return [list(hypotheses[index][0].tokens) for index in range(len(hypotheses))]

    def translate_gru() -> list[list[int]]:
        requests = [Request([2], GRU_TARGET, GRU_TARGET, source=source) for source in gru_sources()]
        return decoded(engine("gru").decode(requests, Tokens(3), GenerationConfig(num_beams=5)))

    runs = cases(generate, translate)
    if device == "cpu" or dtype == "float32":
        runs["gru-beam5"] = translate_gru
    return runs


def gru() -> Any:
    import torch

    from qkv.models.rnn_seq2seq import RNNSeq2Seq, RNNSeq2SeqConfig

    torch.manual_seed(0)
    sizes = {"source_vocab_size": GRU_VOCABULARY, "target_vocab_size": GRU_VOCABULARY}
    return RNNSeq2Seq(RNNSeq2SeqConfig(**sizes, embedding_dim=GRU_EMBEDDING, hidden_dim=GRU_HIDDEN)).eval()


def gru_sources() -> list[list[int]]:
    generator = random.Random(0)
    lengths = [generator.randint(8, 25) for _ in range(GRU_SENTENCES)]
    return sorted(([generator.randrange(4, GRU_VOCABULARY) for _ in range(length)] for length in lengths), key=len)


def simple_cases(models: Path, device: str) -> dict[str, Run]:
    import torch

    import qkv
    from qkv.generation import DecodingConstraints, GenerationConfig
    from qkv.generation import generate as search

    model = cache(lambda name: (gru() if name == "gru" else qkv.load(models / name)).to(device))

    def generate(batch: int, length: int, new: int) -> Run:
        def run() -> list[list[int]]:
            ids, gpt2 = torch.tensor(prompts(batch, length)), model("gpt2")
            with torch.inference_mode():
                _, state = gpt2.forward_from(ids[:, :-1].to(device), gpt2.init_state(batch))
            constraints = DecodingConstraints(batch, ids[:, -1].tolist(), None, new)
            return [list(best.tokens) for (best,) in search(gpt2, state, constraints, GenerationConfig())]

        return run

    def translate(name: str, sentences: int, beams: int) -> Run:
        def run() -> list[list[int]]:
            marian, (ids, mask) = model(name), padded(sources(sentences))
            with torch.inference_mode():
                state = marian.init_state(marian.encode(ids.to(device), mask.sum(1).to(device)))
            constraints = DecodingConstraints(sentences, 9999, 0, TARGET, TARGET, [9999])
            found = search(marian, state, constraints, GenerationConfig(num_beams=beams))
            return [list(hypotheses[0].tokens) for hypotheses in found]

        return run

    def translate_gru() -> list[list[int]]:
        found = list[list[int]]()
        for texts in batches(gru_sources()):
            ids, mask = padded(texts)
            rnn = model("gru")
            with torch.inference_mode():
                state = rnn.init_state(rnn.encode(ids.clamp(max=GRU_VOCABULARY - 1).to(device), mask.sum(1).to(device)))
            constraints = DecodingConstraints(len(texts), 2, 3, GRU_TARGET, GRU_TARGET)
            results = search(rnn, state, constraints, GenerationConfig(num_beams=5))
            found += [list(hypotheses[0].tokens) for hypotheses in results]
        return found

    return cases(generate, translate) | {"gru-beam5": translate_gru}


def batches(texts: list[list[int]], size: int = 64) -> list[list[list[int]]]:
    return [texts[begin : begin + size] for begin in range(0, len(texts), size)]


def padded(texts: list[list[int]], padding: int = 9999) -> Any:
    """Token ids, and where they are not padding."""
    import torch

    longest = max(map(len, texts))
    ids = torch.tensor([text + [padding] * (longest - len(text)) for text in texts])
    return ids, (ids != padding).long()


def joeynmt_cases() -> dict[str, Run]:
    from types import SimpleNamespace

    import torch
    from joeynmt.model import build_model
    from joeynmt.search import beam_search
    from joeynmt.vocabulary import Vocabulary

    torch.set_num_threads(THREADS)
    names = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>", "sep": None}
    special = {f"{name}_token": token for name, token in names.items()}
    special |= {f"{name}_id": None if token is None else number for number, (name, token) in enumerate(names.items())}
    vocabulary = Vocabulary(
        [f"t{number}" for number in range(GRU_VOCABULARY - 4)], SimpleNamespace(**special, lang_tags=[])
    )
    rnn = {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "dropout": 0.0}
    rnn["embeddings"] = {"embedding_dim": GRU_EMBEDDING, "scale": False}
    encoder = rnn | {"hidden_size": GRU_HIDDEN // 2, "bidirectional": True}
    decoder = rnn | {"hidden_size": GRU_HIDDEN, "hidden_dropout": 0.0, "init_hidden": "bridge", "input_feeding": True}
    torch.manual_seed(0)
    config = {"encoder": encoder, "decoder": decoder | {"attention": "bahdanau"}}
    model = build_model(config, vocabulary, vocabulary).eval()

    @torch.inference_mode()
    def run() -> list[list[int]]:
        found = list[list[int]]()
        for texts in batches(gru_sources()):
            ids, mask = padded(texts[::-1], padding=1)  # the longest first
            lengths, mask = mask.sum(1), mask.bool()[:, None]
            output, hidden, _, _ = model(return_type="encode", src=ids, src_length=lengths, src_mask=mask)
            tokens, *_ = beam_search(
                model, 5, output, hidden, mask, GRU_TARGET, 1.0, n_best=1, min_output_length=GRU_TARGET
            )
            found += tokens.tolist()
        return found

    return {"gru-beam5": run}


def transformers_cases(models: Path, device: str, dtype: str, batch_size: int, static: bool) -> dict[str, Run]:
    import torch
    from transformers import GPT2LMHeadModel, MarianMTModel

    options = {"cache_implementation": "static"} if static else {}

    @cache
    def model(name: str) -> Any:
        kind = GPT2LMHeadModel if name == "gpt2" else MarianMTModel
        loaded = kind.from_pretrained(models / name, dtype=getattr(torch, dtype)).eval().to(device)
        config = loaded.generation_config
        config.forced_eos_token_id = config.eos_token_id = config.bad_words_ids = config.max_length = None
        if name == "gpt2":
            config.pad_token_id = 0
        return loaded

    def generate(batch: int, length: int, new: int) -> Run:
        ids = torch.tensor(prompts(batch, length)).to(device)
        mask = torch.ones_like(ids)

        @torch.inference_mode()
        def run() -> list[list[int]]:
            found = model("gpt2").generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, **options)
            return found[:, length:].tolist()

        return run

    def translate(name: str, sentences: int, beams: int) -> Run:
        texts = sources(sentences)

        @torch.inference_mode()
        def run() -> list[list[int]]:
            order, decoded = sorted(range(len(texts)), key=lambda row: len(texts[row])), list[list[int]]()
            for begin in range(0, len(texts), batch_size):
                ids, mask = padded([texts[row] for row in order[begin : begin + batch_size]])
                out = model(name).generate(
                    input_ids=ids.to(device), attention_mask=mask.to(device), num_beams=beams, do_sample=False,
                    max_new_tokens=TARGET, **options,
                )  # fmt: skip
                decoded += out[:, 1:].tolist()
            return [decoded[index] for index in sorted(range(len(order)), key=order.__getitem__)]

        return run

    return cases(generate, translate)


def ct2_cases(models: Path, dtype: str, workers: int) -> dict[str, Run]:
    import ctranslate2

    threads = {"intra_threads": max(1, THREADS // workers), "inter_threads": workers}
    gpt2 = ctranslate2.Generator(str(models / f"gpt2-ct2-{dtype}"), compute_type=dtype, **threads)
    translator = cache(
        lambda name: ctranslate2.Translator(str(models / f"{name}-ct2-{dtype}"), compute_type=dtype, **threads)
    )

    def generate(batch: int, length: int, new: int) -> Run:
        texts = [[f"t{token}" for token in prompt] for prompt in prompts(batch, length)]
        options = {"max_length": new, "min_length": new, "sampling_topk": 1, "include_prompt_in_result": False}
        return lambda: [result.sequences_ids[0] for result in gpt2.generate_batch(texts, **options)]

    def translate(model: str, sentences: int, beams: int) -> Run:
        names = {0: "</s>", 1: "<unk>"}
        texts = [[names.get(token, f"t{token}") for token in source] for source in sources(sentences)]
        options = {"max_decoding_length": TARGET, "min_decoding_length": TARGET}
        size = sentences // workers if workers > 1 else 0

        def run() -> list[list[int]]:
            results = translator(model).translate_batch(texts, beam_size=beams, max_batch_size=size, **options)
            return [[int(piece[1:]) for piece in result.hypotheses[0]] for result in results]

        return run

    return cases(generate, translate)


def contender_cases(name: str, models: Path, device: str) -> dict[str, Run]:
    library, dtype = name.split("-")
    match library:
        case "qkv":
            return qkv_cases(models, device, dtype)
        case "simple":
            return simple_cases(models, device)
        case "joeynmt":
            return joeynmt_cases()
        case "ct2" | "ct2x2":
            return ct2_cases(models, dtype, 2 if library == "ct2x2" else 1)
    runs = transformers_cases(models, device, dtype, MANY if library == "whole" else 64, library == "static")
    without = {"static": "multi30k", "whole": "gpt2"}.get(library, "none")  # slower, and the same as transformers
    return {case: run for case, run in runs.items() if not case.startswith(without)}


def serve(name: str, models: Path, device: str) -> None:
    """Run cases as they are named on standard input, and answer with one line of JSON each."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to standard output
    try:
        runs = contender_cases(name, models, device)
    except Exception as error:  # a library or a checkpoint that is not there
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        if line.strip() not in runs:
            print(json.dumps({"skipped": True}), file=answers)
            continue
        begin = time.perf_counter()
        try:
            tokens = runs[line.strip()]()
        except Exception as error:  # a case that the library does not support
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), file=answers)
            continue
        taken = time.perf_counter() - begin
        print(json.dumps({"seconds": taken, "tokens": tokens, "mib": peak_memory()}), file=answers)


def peak_memory() -> int:
    """Peak resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Contender:
    """A contender in its own process."""

    def __init__(self, name: str, models: Path, device: str) -> None:
        self.name = name
        environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "QKV_CHECK_SHAPES": "0", "HF_HUB_OFFLINE": "1"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.decoding",
            "--worker",
            name,
            "--models",
            str(models),
            "--device",
            device,
        ]
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def start(self) -> dict[str, Any]:
        """Wait until the contender is ready; contenders start at the same time."""
        return self._answer()

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
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--cases")
    parser.add_argument("--contenders")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        serve(options.worker, options.models, options.device)
        return
    device = options.device
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    make_models(options.models)
    names = options.contenders.split(",") if options.contenders else CONTENDERS[device]
    contenders = []
    for contender in [Contender(name, options.models, device) for name in names]:
        if "error" in (answer := contender.start()):
            print(f"left out: {contender.name} ({answer['error']})")
        else:
            contenders.append(contender)
    least = 1.0 if device == "cpu" else LEAST_AGREEMENT_GPU
    for case in options.cases.split(",") if options.cases else CASES[device]:
        compare(case, contenders, options.rounds, LEAST_AGREEMENT.get(case, least))


def compare(case: str, contenders: list[Contender], rounds: int, least_agreement: float) -> None:
    """Print the speed of each contender, and its median ratio to the others within a round."""
    tokens, memory = {}, {}
    for contender in contenders:
        answer = contender.run(case)  # also warms up
        if "skipped" in answer:
            continue
        if "error" in answer:
            print(f"{case}: left out: {contender.name} ({answer['error']})")
            continue
        tokens[contender.name], memory[contender.name] = answer["tokens"], answer["mib"]
    contenders = [contender for contender in contenders if contender.name in tokens]
    exact = [name for name in tokens if name.endswith("float32")]
    for name in exact[1:]:
        share = agreement(tokens[name], tokens[exact[0]])
        if share < least_agreement:
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
            "tokens_per_s": round(TOKENS[case] / statistics.median(seconds), 1),
        }
        row |= {"seconds": round(statistics.median(seconds), 4), "mib": memory[name]}
        if exact:
            row["agrees"] = round(agreement(tokens[name], tokens[exact[0]]), 3)
        row |= {f"x {other}": round(ratio, 2) for other, ratio in ratios.items()}
        print(json.dumps(row), flush=True)


def make_models(models: Path) -> None:
    """Write random checkpoints of transformers, unless they are there."""
    if all((models / name / "config.json").exists() for name in ("gpt2", "marian", "multi30k")):
        return
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(models / "gpt2")
    for name, width, heads, layers, ffn in (("marian", 512, 8, 6, 2048), ("multi30k", 128, 4, 4, 256)):
        config = MarianConfig(
            vocab_size=VOCABULARY, d_model=width, encoder_layers=layers, decoder_layers=layers,
            encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=ffn, decoder_ffn_dim=ffn,
            pad_token_id=9999, decoder_start_token_id=9999, eos_token_id=0, forced_eos_token_id=0,
            max_position_embeddings=512, activation_function="relu", scale_embedding=True,
        )  # fmt: skip
        MarianMTModel(config).save_pretrained(models / name)


if __name__ == "__main__":
    main()
