"""Sphinx's settings for the site."""

import re
from typing import Any

import torchfake
from docs.site import assemble, reference

project = "torchfake"
author = "the torchfake maintainers"
copyright = "the torchfake maintainers, BSD-3-Clause"
version = release = torchfake.__version__

extensions = [
    *("sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "sphinx_copybutton"),
    *("sphinxcontrib.mermaid", "sphinxext.opengraph"),
]
exclude_patterns = ["_build"]
smartquotes = False  # options begin with two hyphens
nb_execution_mode = "off"  # notebooks hold their outputs; tests/examples runs them
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
myst_fence_as_directive = ["mermaid"]
mermaid_fullscreen = False
mermaid_height = "auto"
copybutton_prompt_text = "$ "
ogp_site_url = "https://torchfake.github.io/torchfake/"
ogp_social_cards = {"enable": False}
ogp_enable_meta_description = True
autodoc_typehints = "none"  # signatures have them; a second list would repeat them
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
nitpicky = True
suppress_warnings = [
    "ref.python",  # attributes of several records share a name, such as dtype
    "ref.ref",  # docstrings that fakes have from torch name labels of its pages
]
nitpick_ignore_regex = [
    ("py:.*", r"(?!torchfake).*"),  # of Python, torch and others, whose pages are not at hand
]

html_theme = "pydata_sphinx_theme"
html_title = f"torchfake {version}"
html_static_path = [str(assemble.FOLDER / "static")]
mermaid = assemble.ROOT / "build/looks/node_modules/mermaid/dist/mermaid.min.js"
if mermaid.is_file():  # else pages load it from the network
    html_static_path.append(str(mermaid))
    mermaid_use_local = "mermaid.mjs"
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_favicon = str(assemble.FOLDER / "static" / "favicon.svg")
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "github_url": assemble.repository(),
    "navbar_align": "left",
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "switcher": {"json_url": "_static/versions.json", "version_match": version},
    "check_switcher": False,
    "show_toc_level": 2,
}


def setup(app: Any) -> None:
    """Have fields of records described by the comments beside them."""
    app.connect("autodoc-process-docstring", _describe_fields)
    app.connect("autodoc-skip-member", _skips)


def _describe_fields(app: Any, what: str, name: str, value: Any, options: Any, lines: Any) -> None:
    if what != "class":
        return
    documented = "\n".join(lines)
    fields = {
        field: words
        for field, words in reference.field_comments(value).items()
        if f":ivar {field}:" not in documented and f".. attribute:: {field}" not in documented
    }
    if fields:
        texts = {field: re.sub(r"(\w):(\w)", r"\1\\:\2", words) for field, words in fields.items()}
        lines += ["", *(f":ivar {field}: {words}" for field, words in texts.items()), ""]


def _skips(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Whether a member is left out: fields are, which the class's description lists."""
    return True if type(value).__name__ in ("_tuplegetter", "member_descriptor") else None
