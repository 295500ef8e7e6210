"""The sentences of a story in the terminal, with the attention weight of each hop."""

from rich.text import Text

from qkv.pipelines.story_answerer import StoryAnswer
from qkv.runtime.text import printable
from qkv.visualize.selection import pick_head
from qkv.visualize.terminal import shaded_style


def story_lines(answer: StoryAnswer) -> Text:
    """Return one line per sentence, preceded by its weight in each hop, and the question."""
    (hops,) = answer.attention
    weights = pick_head(hops, None)
    lines = [Text("  ".join(f"{hop:>6}" for hop in hops.rows), style="dim")]
    for column, sentence in enumerate(answer.sentences):
        line = Text()
        for weight in weights[:, column].tolist():
            line.append(f"{weight:6.1%}", style=shaded_style(weight)).append("  ")
        lines.append(line.append(printable(sentence)))
    lines.append(Text(f"{'':{8 * len(weights)}}{printable(answer.question)}", style="bold"))
    return Text("\n").join(lines)
