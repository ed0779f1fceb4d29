"""Opens pages of the site in headless Chromium, as readers with wide and narrow screens do.

Input: the folder of a site. Output: what is wrong, a line each, of geometry and colours on some
pages, and what axe finds on all. Invariant: nothing outside the
folder is requested. Called by: ``nox -s site``.

    python -m docs.site.browse FOLDER [--shots FOLDER]

The browser is the one that CHROMIUM names, or the first of chromium, chromium-browser and
google-chrome on PATH.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.looks.geometry import axe_findings

PAGES = (
    "index.html", "concepts.html", "distributed/plan.html", "reference/fakes.html",
    "reference/command-line.html", "figures.html", "design.html", "examples/will_it_fit.html",
)  # fmt: skip
WIDTHS, THEMES = (1280, 800, 400), ("light", "dark")


def browser_path() -> str:
    """The browser's path.

    Raises:
        SystemExit: if there is none.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise SystemExit("no browser: install chromium, or name one in the variable CHROMIUM")
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


_RUN_OFF = """() => [...document.querySelectorAll("article :not(pre) > code")].filter((code) =>
  !code.closest("table") && code.getBoundingClientRect().right > innerWidth
).map((code) => code.textContent)"""
"""Names in a text that are wider than the page."""


def problems(folder: Path, shots: Path | None = None) -> Iterator[str]:
    """Open the pages in all widths and themes; what is wrong with them."""
    from playwright.sync_api import sync_playwright

    with served(folder) as address, sync_playwright() as engine:
        options = ["--no-sandbox", "--disable-gpu", "--single-process", "--no-zygote"]
        browser = engine.chromium.launch(executable_path=browser_path(), args=options)
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.route("**/*", functools.partial(_only_from, address))
        for name in PAGES:
            yield from _problems_of_page(page, f"{address}/{name}", name, shots)
            yield from (f"{name}: {error}" for error in errors)
            errors.clear()
        for path in sorted(folder.rglob("*.html")):
            name = path.relative_to(folder).as_posix()
            if name.startswith("_static/"):  # parts of pages
                continue
            yield from (f"{name}: {found}" for found in _axe(page, f"{address}/{name}", name))
        errors.clear()  # of pages in the folders of the theme
        yield from _problems_of_search(page, address)
        yield from (f"search: {error}" for error in errors)
        browser.close()


def _only_from(address: str, route: Any) -> None:
    route.continue_() if route.request.url.startswith(address) else route.abort()


def _problems_of_page(page: Any, address: str, name: str, shots: Path | None) -> Iterator[str]:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            page.goto(address)
            page.wait_for_timeout(200)
            if shots is not None:
                shots.mkdir(parents=True, exist_ok=True)
                stem = name.replace("/", "-").removesuffix(".html")
                page.screenshot(path=str(shots / f"{stem}-{width}-{theme}.png"))
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                yield f"{name} is {wide} pixels wide in a window of {width}"
            yield from (f"{name}: {code} runs off at {width}" for code in page.evaluate(_RUN_OFF))
            if page.evaluate("document.documentElement.dataset.theme") != theme:
                yield f"{name} is not {theme} where the reader's system is"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_timeout(500)
    if not page.locator(".version-switcher__button").count():
        yield f"{name} has no version switch"
    for theme in THEMES:
        page.locator("button.theme-switch-button:visible").first.click()
        page.locator(f"button.theme-change-button[data-mode={theme}]:visible").first.click()
        if page.evaluate("document.documentElement.dataset.theme") != theme:
            yield f"{name}: the switch does not make it {theme}"
    page.evaluate("localStorage.clear()")


def _axe(page: Any, address: str, name: str) -> Iterator[str]:
    """What axe finds on a page: of PAGES also in the dark, where others have the same colours."""
    for theme in THEMES if name in PAGES else THEMES[:1]:
        page.emulate_media(color_scheme=theme)
        page.goto(address)
        yield from axe_findings(page)


def _problems_of_search(page: Any, address: str) -> Iterator[str]:
    page.goto(f"{address}/search.html?q=materialize_module")
    try:
        page.wait_for_selector("#search-results li a", timeout=10_000)
    except Exception as error:
        yield f"search finds nothing for materialize_module: {type(error).__name__}"


def main() -> None:
    """Open the pages, and say what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shots", type=Path)
    arguments = parser.parse_args()
    found = list(problems(arguments.folder, arguments.shots))
    print(*found, sep="\n")
    views = len(PAGES) * len(WIDTHS) * len(THEMES)
    print(f"{len(PAGES)} pages opened, {views} views, {len(found)} problems")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
