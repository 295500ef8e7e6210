"""Show notebooks as pages, with the outputs that are stored in them."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and its figures."""
    exporter = MarkdownExporter()
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
