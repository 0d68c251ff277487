"""What the site has beyond MkDocs: pages that run when it is built, typeset formulas, and the
printed benchmarks.

A page that begins with `run: true` is a notebook in Markdown (jupytext): its blocks are executed in
one kernel, what they print and draw is put below them, and the notebook can be downloaded. The
paragraph in italics below a block that draws is the picture's alternative text. Where data are not
to be had, the page says so in place of its results.
"""

import logging
import os
import re
import tempfile
import textwrap
from base64 import b64decode
from html import unescape
from pathlib import Path

import jupytext
import nbformat
from latex2mathml.converter import convert
from markdown import Extension
from markdown.inlinepatterns import SimpleTextInlineProcessor
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

# compiling is most of the time of these pages
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
log = logging.getLogger("mkdocs.hooks.pages")
RESULTS = Path(__file__).parents[1] / "benchmarks"
WIDTH = 100  # characters of what is printed
# who searches wants a page that explains first
BOOSTS = {"benchmarks/": 0.3, "reproductions/": 0.3, "reference/": 0.5, "gallery": 0.5}
SETUP = f"""
import warnings
import pandas as pd
%config InlineBackend.figure_formats = ['retina']
pd.set_option("display.width", {WIDTH})
warnings.filterwarnings("ignore", message="IProgress not found")
warnings.formatwarning = lambda message, category, *_: f"{{category.__name__}}: {{message}}\\n"
"""
LACKING = """
!!! warning "Not run"

    The data of this page were not there when the site was built: {}
"""


class Subscripts(Extension):
    """An underscore is a subscript, as in θ̂_(i), and emphasises nothing."""

    def extendMarkdown(self, md):
        md.inlinePatterns.register(SimpleTextInlineProcessor("(_)"), "subscript", 65)


@event_priority(100)  # before the extensions are passed on to docstrings
def on_config(config):
    config.markdown_extensions.append(Subscripts())


def on_files(files, config):
    for path in sorted([RESULTS / "RESULTS.md", *(RESULTS / "results").glob("*.*")]):
        uri = f"benchmarks/{path.relative_to(RESULTS)}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(text, page, config, files):
    for folder, boost in BOOSTS.items():
        if page.file.src_uri.startswith(folder):
            page.meta["search"] = {"boost": boost}
    text = text.replace("](../benchmarks/", "](benchmarks/")  # beside the pages on the site
    if not page.meta.get("run"):
        return text
    name = page.file.src_uri.removesuffix(".md")
    notebook = jupytext.reads(text, {"extension": ".md", "format_name": "markdown"})
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SETUP))
    try:
        with tempfile.TemporaryDirectory() as folder:
            log.info("running %s.md", name)
            place = {"metadata": {"path": folder}}
            NotebookClient(
                notebook, timeout=600, kernel_name="python3", resources=place, coalesce_streams=True
            ).execute()
    except CellExecutionError as error:
        if error.ename != "FileNotFoundError" or not error.evalue.startswith("datasets:"):
            raise PluginError(f"{name}.md: {error}") from error
        log.info("%s.md is NOT RUN: %s", name, error.evalue)
        title, rest = text.split("\n", 1)
        return title + "\n" + LACKING.format(error.evalue) + rest
    notebook.cells.pop(0)

    def keep(ending, content):
        files.append(File.generated(config, f"{name}{ending}", content=content))
        return f"{Path(name).name}{ending}"

    written = _written(notebook, keep, name)
    if not page.meta.get("download", True):
        return written
    for cell in notebook.cells:
        cell.metadata.clear()
    title, rest = written.split("\n", 1)
    saved = keep(".ipynb", nbformat.writes(notebook))
    return f"{title}\n\n[Download as a notebook]({saved}){{ .md-button download }}\n{rest}"


def _written(notebook, keep, name):
    """The notebook as Markdown, with what its cells printed and drew."""
    parts, drawn = [], 0
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            # a bar
            if "application/vnd.jupyter.widget-view+json" in data or not data["text/plain"].strip():
                continue
            if "image/png" in data:
                below = (
                    notebook.cells[place + 1].source.split("\n\n")[0]
                    if place + 1 < len(notebook.cells)
                    else ""
                )
                if not re.fullmatch(r"\*[^*].*\*", below, re.DOTALL):
                    raise PluginError(
                        f"{name}.md: a picture without a paragraph in italics below it:\n{cell.source}"
                    )
                drawn += 1
                picture = keep(f"-{drawn}.png", b64decode(data["image/png"]))
                width = output.metadata["image/png"]["width"]
                parts.append(
                    f"![{' '.join(below.strip('*').split())}]({picture}){{ width={width} }}"
                )
            elif "text/html" in data and "<style" in data["text/html"]:  # a table of pandas
                parts.append(
                    re.sub(
                        r'<style.*?</style>| border="1" class="dataframe"',
                        "",
                        data["text/html"],
                        flags=re.DOTALL,
                    )
                )
            else:
                lines = [_folded(line) for line in data["text/plain"].rstrip().split("\n")]
                parts.append("\n".join(["```{ .text .output }", *lines, "```"]))
    return "\n\n".join(parts) + "\n"


def _folded(line):
    """A line that is longer than the page is wide.

    A printed result's, below its label. Rows of tables stay.
    """
    if len(line) <= WIDTH or "  " in line[16:].strip():
        return line
    indent = 16 if line[15] == " " else 0
    return line[:indent] + f"\n{' ' * indent}".join(textwrap.wrap(line[indent:], WIDTH - indent))


def on_page_content(html, **_):
    """Formulas as MathML, which browsers typeset by themselves."""

    def typeset(found):
        formula = unescape(found[2]).strip()
        if formula.startswith(r"\("):
            return convert(formula[2:-2])
        block = convert(formula[2:-2], display="block")
        return block.replace("<math ", '<math tabindex="0" ', 1)  # a long one scrolls by keys

    html = re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', typeset, html, flags=re.DOTALL)
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)  # an empty cell is no header
    return re.sub(
        r"(<table>.*?</table>)", r'<div class="wide" tabindex="0">\1</div>', html, flags=re.DOTALL
    )


def on_post_page(html, **_):
    """Names of the parts that screen readers list."""
    html = html.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return html.replace(
        'class="md-path" aria-label="Navigation"', 'class="md-path" aria-label="Path"'
    )
