"""How the pages become a site: ``nox -s docs``, or ``sphinx-build -W -n docs build/site``.

The pages are plain Markdown, to be read in the repository's browser as well, so nothing in them is written for the
generator. Two things are added while it reads: what an index page links is its part of the navigation, and a link to a
file outside ``docs/`` leads to a copy of that file.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

FOLDER = Path(__file__).parent

project = "DeepInfer"
copyright = "the DeepInfer authors"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["generators"]

myst_heading_anchors = 4  # the anchors that the repository's browser gives, so that one link works in both
myst_links_external_new_tab = True

html_theme = "furo"
html_title = "DeepInfer"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}
templates_path: list[str] = []
pygments_style = "friendly"
pygments_dark_style = "native"

LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)\s]*)?\)")


def contents_of(docname: str, text: str) -> list[str]:
    """The pages of an index page: those of its own folder that it links, and the index pages of folders in it."""
    folder = posixpath.dirname(docname)
    pages: dict[str, None] = {}
    for target in LINK.findall(text):
        path = posixpath.normpath(posixpath.join(folder, target)).removesuffix(".md")
        below = posixpath.relpath(path, folder or ".")
        is_page = "/" not in below and below != "index"
        is_section = below.count("/") == 1 and below.endswith("/index") and not below.startswith("..")
        if is_page or is_section:
            pages[below] = None
    return list(pages)


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    if posixpath.basename(docname) == "index":
        pages = contents_of(docname, source[0])
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def link_outside(app: Sphinx, document: nodes.document) -> None:
    """Make links to Markdown files of the repository that are no pages downloads of those files."""
    here = (FOLDER / app.env.docname).parent
    for link in list(document.findall(addnodes.pending_xref)):
        path = Path(os.path.normpath(FOLDER / f"{link.get('reftarget')}.md"))
        if link.get("refdomain") == "doc" and path.is_file() and not path.is_relative_to(FOLDER):
            target = os.path.relpath(path, here)
            copy = addnodes.download_reference("", "", *link.children, reftarget=target, refdoc=app.env.docname)
            app.env.note_dependency(str(path))
            filename = app.env.dlfiles.add_file(app.env.docname, str(path))
            copy["filename"] = filename
            link.replace_self(copy)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", link_outside, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
