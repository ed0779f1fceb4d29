"""Pages that surround an output as a notebook does, with the style sheets of its program."""

from __future__ import annotations

import re
from pathlib import Path

from tests.looks.conftest import package

PROGRAMS = ("jupyterlab", "vscode", "bare")
THEMES = ("light", "dark")

_BARE = {"light": "background: #fff; color: #000", "dark": "background: #111; color: #eee"}
_VSCODE = {
    "light": "margin: 0; background: #fff; --vscode-foreground: #3b3b3b",
    "dark": "margin: 0; background: #1f1f1f; --vscode-foreground: #ccc",
}
"""What the themes Light Modern and Dark Modern give an output."""


def framed(output: str, program: str, theme: str) -> str:
    """A page with an output of a cell, as one of PROGRAMS shows it."""
    return {"jupyterlab": _jupyterlab, "vscode": _vscode, "bare": _bare}[program](output, theme)


def _page(style: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>output</title><style>{style}</style>'
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head>{body}</html>'


def _bare(output: str, theme: str) -> str:
    return _page("", f'<body style="{_BARE[theme]}"><main>{output}</main></body>')


def _jupyterlab(output: str, theme: str) -> str:
    sheets = (
        package(f"@jupyterlab/theme-{theme}-extension") / "style/variables.css",
        package("@jupyterlab/rendermime") / "style/base.css",
    )
    style = "".join(map(Path.read_text, sheets))
    style += "body {background: var(--jp-layout-color0)}"
    classes = "jp-RenderedHTMLCommon jp-RenderedHTML jp-OutputArea-output"
    is_light = "true" if theme == "light" else "false"
    body = (
        f'<body class="jp-ThemedContainer" data-jp-theme-light="{is_light}">'
        f'<main class="{classes}">{output}</main></body>'
    )
    return _page(style, body)


def _vscode(output: str, theme: str) -> str:
    views = package("@codingame/monaco-vscode-api") / "vscode/src/vs/workbench/contrib/notebook"
    page = (views / "browser/view/renderers/backLayerWebView.js").read_text()
    found = re.search(r"(?s)<style nonce=[^>]*>(.*?)</style>", page)
    assert found is not None
    style = found[1] + "html, body {color: var(--vscode-foreground)}"
    body = (
        f'<body class="vscode-{theme}" style="{_VSCODE[theme]}"><main id="container"><div><div>'
        f'<div class="output">{output}</div></div></div></main></body>'
    )
    return _page(style, body)
