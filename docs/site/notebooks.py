"""Show notebooks as pages, with the outputs that are stored in them."""

from itertools import groupby

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode


class JoinStreams(Preprocessor):
    """Joins the lines that a cell prints in turn to stdout and stderr, as a terminal shows them."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, object], index: int
    ) -> tuple[NotebookNode, dict[str, object]]:
        """Return the cell with one output for each run of stream outputs."""
        outputs: list[NotebookNode] = []
        for kind, group in groupby(cell.get("outputs", []), key=lambda output: output["output_type"]):
            run = list(group)
            if kind == "stream":
                run[0]["text"] = "".join(output["text"] for output in run)
            outputs += run[:1] if kind == "stream" else run
        if "outputs" in cell:
            cell["outputs"] = outputs
        return cell, resources


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and its figures."""
    exporter = MarkdownExporter(preprocessors=[JoinStreams])
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        name = notebook.src_uri.removesuffix(".ipynb")
        text, resources = exporter.from_filename(
            notebook.abs_src_path, resources={"output_files_dir": f"{name.rpartition('/')[2]}_files"}
        )
        folder = name.rpartition("/")[0]
        for path, data in resources["outputs"].items():
            files.append(File.generated(config, f"{folder}/{path}", content=data))
        link = f'<a class="md-button" href="{notebook.src_uri.rpartition("/")[2]}" download>Download this notebook</a>'
        files.append(File.generated(config, f"{name}.md", content=f"{text}\n\n{link}\n"))
    return files
