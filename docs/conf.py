"""The site that `make docs` builds of these pages, with Sphinx and MyST: `sphinx-build -W docs
docs/_build`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
import make_http

from aveyb_retrieval import __version__

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
project = "aveyb-retrieval"
release = version = __version__
html_title = "aveyb-retrieval"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_show_sphinx = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a generated block may begin at the level that its page needs

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True  # attributes of a class are listed once, below its members
napoleon_custom_sections = [
    (name, "params_style") for name in ("Sizes", "Choices", "Numerics", "Initialization", "Funnel")
]


def _plain_links(app: Sphinx, tree: document) -> None:
    """Show a link to a file of the repository that is no page of the site as the file's name."""
    from docutils import nodes
    from sphinx import addnodes

    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(tree.findall(addnodes.pending_xref)):
        target = str(link.get("reftarget", "")).partition("#")[0]
        candidates = (here / target).resolve(), (here / f"{target}.md").resolve()
        found = next((path for path in candidates if path.exists()), None)
        if target and found is not None and Path(app.srcdir).resolve() not in found.parents:
            inner = [child.deepcopy() for child in link.children]
            link.replace_self(
                nodes.inline("", "", *inner, nodes.Text(f" ({found.relative_to(ROOT)})"))
            )


def setup(app: Sphinx) -> dict[str, Any]:
    """Write what is generated, and mend links that leave the site."""
    make_http.write(Path(app.srcdir) / "http.md")
    app.connect("doctree-read", _plain_links)
    return {"parallel_read_safe": True}
