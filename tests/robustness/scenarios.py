"""The command lines under test: the subject, which of its files are damaged, and what the command may write."""

from dataclasses import dataclass

from tests.robustness.inputs import settings
from tests.robustness.mutators import of_families, output_targets

MODEL = ("bytes", "json", "tensors", "tokenizer", "special", "swap")
DATA = ("bytes", "text", "special", "swap")
RUN = ("bytes", "json", "toml", "special", "swap", "folder")
CPU = ("--device", "cpu")


@dataclass(frozen=True)
class Scenario:
    """A command line with placeholders: {in} is the input folder, {out} the output path, {beside} its folder."""

    name: str
    group: str  # model, data, run or output
    subject: str
    command: tuple[str, ...]
    targets: tuple[str, ...] = ("**/*",)  # glob patterns below {in}: what is damaged
    families: tuple[str, ...] = MODEL
    output: str = ""  # the name of what is written in the folder out
    written: tuple[str, ...] = ()  # glob patterns of other files that may be written
    result: str = ""  # kind of output, which determines how it is checked
    repeat: int = 1  # cases for each mutator

    @property
    def mutations(self) -> list[str]:
        """The names of what can be done to it."""
        if self.group == "output":
            return output_targets()
        return [one.name for one in of_families(*self.families)]


def _model(subject: str, *command: str, output: str = "", result: str = "") -> Scenario:
    """A command that uses a model folder, whose files are damaged."""
    name = f"{command[0]} {subject}"
    return Scenario(name, "model", subject, (*command, *_device(command[0])), ("model/*",), MODEL, output, (), result)


def _device(command: str) -> tuple[str, ...]:
    return () if command in ("convert", "compare", "data") else CPU


MODELS = [
    _model("own/rnn_seq2seq", "translate", "{in}/model", "--input", "{in}/lines.txt", "--num-beams", "2", "--json"),
    _model("own/transformer", "translate", "{in}/model", "--input", "{in}/lines.txt"),
    _model("own/gpt2", "generate", "{in}/model", "--input", "{in}/lines.txt", "--max-new-tokens", "8"),
    _model("own/rnn_lm", "generate", "{in}/model", "The king", "--max-new-tokens", "8"),
    _model("own/bert_classifier", "classify", "{in}/model", "--input", "{in}/lines.txt"),
    _model("own/bert_tagger", "tag", "{in}/model", "--input", "{in}/lines.txt"),
    _model("own/bert_span", "answer", "{in}/model", "--input", "{in}/questions.jsonl"),
    _model("own/bert_pretraining", "fill", "{in}/model", "--input", "{in}/masked.txt"),
    _model("own/rnn_text", "classify", "{in}/model", "--input", "{in}/lines.txt", "--json"),
    _model("own/han", "classify", "{in}/model", "--document", "{in}/document.txt"),
    _model("own/captioner", "caption", "{in}/model", "{in}/0.png"),
    _model("own_vit", "classify", "{in}/model", "{in}/0.png"),
    _model("hf/gpt2", "generate", "{in}/model", "--input", "{in}/lines.txt", "--max-new-tokens", "8"),
    _model("hf/gpt2_shards", "generate", "{in}/model", "the king", "--max-new-tokens", "8"),
    _model("hf/bert", "embed", "{in}/model", "--input", "{in}/lines.txt", "--output", "{out}", output="vectors.npy",
           result="npy"),
    _model("hf/bert_masked", "fill", "{in}/model", "--input", "{in}/masked.txt"),
    _model("hf/bert_classifier", "classify", "{in}/model", "--input", "{in}/lines.txt"),
    _model("hf/bert_tagger", "tag", "{in}/model", "--input", "{in}/lines.txt", "--json"),
    _model("hf/bert_span", "answer", "{in}/model", "--input", "{in}/questions.jsonl"),
    _model("hf/marian", "translate", "{in}/model", "--input", "{in}/lines.txt"),
    _model("hf/vit", "classify", "{in}/model", "{in}/0.png"),
    _model("hf/bert_masked", "view", "{in}/model", "the king", "--page", "{out}", output="page.html", result="html"),
    _model("hf/marian", "convert", "{in}/model", "{out}", "--to", "qkv", output="copy", result="model"),
    _model("hf/gpt2_shards", "convert", "{in}/model", "{out}", output="copy", result="model"),
    _model("own/gpt2", "convert", "{in}/model", "{out}", "--to", "hf", output="copy", result="model"),
    _model("own/transformer", "evaluate", "{in}/model", "--data", "{in}/pairs.tsv", "--output", "{out}",
           output="answers.txt", result="lines"),
    _model("elmo", "convert", "{in}/model", "{out}", "--to", "qkv", output="copy", result="model"),
]  # fmt: skip


def _train(recipe: str, *files: str, more: tuple[str, ...] = (), families: tuple[str, ...] = DATA) -> Scenario:
    """Training on data files, which are damaged."""
    own = (recipe,) if recipe.endswith(".toml") else ()
    given = [part for name in files for part in ("--data", f"{{in}}/{name}")]
    command = ("train", f"{{in}}/{recipe}" if own else recipe, *given, *settings(recipe, *more), "--output", "{out}")
    return Scenario(
        f"train {recipe}", "data", f"texts/{'+'.join((*own, *files))}", command, files, families, "run", result="run"
    )


def _read(subject: str, damaged: str, *command: str, families: tuple[str, ...] = DATA) -> Scenario:
    """A command that reads one input file, which is damaged."""
    name = f"{command[0]} {subject} of {damaged}"
    return Scenario(name, "data", subject, (*command, *_device(command[0])), (damaged,), families)


IMAGE = ("bytes", "image", "special")
DATAS = [
    _train("pairs-gru", "pairs.tsv"),
    _train("pairs-transformer", "source.txt", "target.txt"),
    _train("polarity-bert", "labels.tsv"),
    _train("ewt-bert-scratch", "tags.conll"),
    _train("ewt-bert-tree", "trees.conllu"),
    _train("questions.toml", "squad.json", families=(*DATA, "json")),
    _train("shakespeare-gpt", "text.txt"),
    _train("imdb-bert", "reviews.txt"),
    Scenario("train captions", "data", "captions", (
        "train", "shapes-attend", "--data-dir", "{in}", *settings("shapes-attend"), "--output", "{out}"
    ), families=(*DATA, "image"), output="run", result="run"),
    Scenario("train recipe", "data", "texts/recipe.toml", (
        "train", "{in}/recipe.toml", "--output", "{out}", *CPU
    ), families=(*DATA, "toml"), output="run", result="run", repeat=3),
    Scenario("train elmo", "data", "elmo", (
        "train", "polarity-elmo", "--data", "{in}/labels.tsv", "--set", "init={in}/model", "--set", "train.epochs=1",
        "--set", "model.task_embedding_dim=4", "--set", "model.task_hidden_dim=4", "--output", "{out}", *CPU,
    ), ("model/*",), ("bytes", "json", "special"), output="run", result="run"),
    _read("texts/pairs.tsv", "pairs.tsv", "data", "show", "{in}/pairs.tsv"),
    _read("own/transformer", "pairs.tsv", "evaluate", "{in}/model", "--data", "{in}/pairs.tsv"),
    _read("own/transformer", "lines.txt", "translate", "{in}/model", "--input", "{in}/lines.txt"),
    _read("own/gpt2", "lines.txt", "generate", "{in}/model", "--input", "{in}/lines.txt", "--max-new-tokens", "4"),
    _read("own/bert_tagger", "trees.conllu", "tag", "{in}/model", "--input", "{in}/trees.conllu"),
    _read("own/bert_span", "questions.jsonl", "answer", "{in}/model", "--input", "{in}/questions.jsonl"),
    _read("own/han", "document.txt", "classify", "{in}/model", "--document", "{in}/document.txt"),
    _read("hf/bert", "lines.txt", "embed", "{in}/model", "--input", "{in}/lines.txt", "--json"),
    _read("own_vit", "0.png", "classify", "{in}/model", "{in}/0.png", families=IMAGE),
    _read("own/captioner", "0.png", "caption", "{in}/model", "{in}/0.png", families=IMAGE),
]  # fmt: skip

RESUMED = ("run/.lock", "run/*", "run/*/*")


def _used(command: str, subject: str, *more: str, written: tuple[str, ...] = ()) -> Scenario:
    """A command on a run folder, which is damaged."""
    arguments = ("train", "--resume", "{in}/run") if command == "resume" else (command, "{in}/run", *more)
    return Scenario(
        f"{command} {subject}", "run", subject, (*arguments, *_device(command)), ("run/*", "run/*/*"), RUN,
        written=tuple(f"in/{pattern}" for pattern in written), result="resumed" if command == "resume" else "",
        repeat=2 if command == "resume" else 1,
    )  # fmt: skip


RUNS = [
    _used("resume", "interrupted", written=RESUMED),
    _used("resume", "run/rnn_seq2seq", written=RESUMED),
    _used("evaluate", "run/rnn_seq2seq", "--split", "valid", written=("run/.lock", "run/results.jsonl")),
    _used("evaluate", "run/bert_classifier", "--split", "valid", written=("run/.lock", "run/results.jsonl")),
    _used("translate", "run/rnn_seq2seq", "12 May 1984"),
    Scenario("view run/ntm", "run", "run/ntm", (
        "view", "{in}/run", "5", "--page", "{out}", *CPU
    ), ("run/*", "run/*/*"), RUN, "memory.html", (), "html"),
    Scenario("compare", "run", "runs", (
        "compare", "{in}/rnn_seq2seq", "{in}/transformer", "--output", "{out}"
    ), ("*/results.jsonl", "*/recipe.toml", "*"), ("bytes", "text", "special", "folder"), "page.md", (), "md"),
]  # fmt: skip


def _out(subject: str, output: str, result: str, *command: str, written: tuple[str, ...] = ()) -> Scenario:
    """A command whose output target already exists or cannot be written."""
    name, arguments = f"{command[0]} to {result}", (*command, *_device(command[0]))
    return Scenario(name, "output", subject, arguments, output=output, written=written, result=result)


TARGETS = [
    _out("own/gpt2", "copy", "model", "convert", "{in}/model", "{out}", "--to", "qkv"),
    _out("own/gpt2", "page.html", "html", "view", "{in}/model", "the king", "--page", "{out}"),
    _out("own/gpt2", "drawn.png", "png", "view", "{in}/model", "the king", "--page", "{beside}/p.html", "--png",
         "{out}", written=("out/p.html",)),
    _out("own/bert_classifier", "vectors.npy", "npy", "embed", "{in}/model", "the king", "--output", "{out}"),
    _out("own/bert_classifier", "v.safetensors", "safetensors", "embed", "{in}/model", "the king", "--output", "{out}"),
    _out("own/transformer", "answers.txt", "lines", "evaluate", "{in}/model", "--data", "{in}/pairs.tsv", "--output",
         "{out}"),
    _out("own/transformer", "page.html", "html", "translate", "{in}/model", "the king", "--page", "{out}"),
    _out("own/captioner", "page.html", "html", "caption", "{in}/model", "{in}/0.png", "--page", "{out}"),
    _out("runs", "page.md", "md", "compare", "{in}/rnn_seq2seq", "{in}/transformer", "--output", "{out}"),
    _out("runs", "figure.png", "png", "compare", "{in}/rnn_seq2seq", "--by-length", "{out}"),
    _out("texts/pairs.tsv", "run", "run", "train", "pairs-gru", "--data", "{in}/pairs.tsv", *settings("pairs-gru"),
         "--output", "{out}"),
]  # fmt: skip

SCENARIOS = [*MODELS, *DATAS, *RUNS, *TARGETS]
