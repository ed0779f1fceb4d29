"""How the folders lie: packages of a few files, their tests in the folder of the same name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "torchfake"
TESTS = ROOT / "tests"
PACKAGES = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
PRIVATE = [package for package in PACKAGES if package.name.startswith("_")]
ROOMS = sorted(path.parent for path in SOURCE.glob("*/**/__init__.py"))
LISTING = [*PRIVATE, *(room for room in ROOMS if room.relative_to(SOURCE).parts[0][0] != "_")]
"""Packages whose pages list what is in them: subpackages of private ones are listed by these."""

FACES = {"__init__", "__main__", "checkpoint", "compat", "deferred", "errors", "fake", "fx"}
FACES |= {"meta_init"}
MIN_FILES, MAX_FILES = 4, 13  # of a package and a subpackage
MAX_LINES = 350
MAX_TEST_LINES = 400


def files_in(package: Path) -> list[str]:
    """The files of a package, without its ``__init__``."""
    return sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_at_the_top_are_faces() -> None:
    """And what torch enters, and the counter that all of them show."""
    assert {path.stem for path in SOURCE.glob("*.py")} - {"_dispatch", "_progress"} <= FACES


@pytest.mark.parametrize("room", ROOMS, ids=named)
def test_a_room_is_seen_at_a_glance(room: Path) -> None:
    assert MIN_FILES <= len(list(room.glob("*.py"))) <= MAX_FILES


@pytest.mark.parametrize("package", PRIVATE, ids=named)
def test_a_private_file_can_be_read_at_one_sitting(package: Path) -> None:
    for path in package.glob("*.py"):
        assert len(path.read_text().splitlines()) <= MAX_LINES, path.name


@pytest.mark.parametrize("package", LISTING, ids=named)
def test_a_package_lists_its_files(package: Path) -> None:
    page = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    listed = [line.split()[0] for line in page.splitlines() if line.startswith("    ")]
    rooms = [path.parent.name for path in package.glob("*/__init__.py")]
    names = sorted(name.strip("`") for name in listed)
    assert names in (files_in(package), sorted(files_in(package) + rooms))


@pytest.mark.parametrize("package", PACKAGES, ids=named)
def test_tests_lie_in_a_folder_of_the_same_name(package: Path) -> None:
    assert list((TESTS / package.name).rglob("test_*.py"))


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=named)
def test_a_test_file_can_be_read_at_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_TEST_LINES


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=named)
def test_a_module_says_what_goes_in_and_what_comes_out(path: Path) -> None:
    page = ast.get_docstring(ast.parse(path.read_text()))
    assert page, "a module docstring says what it does"
    page = " ".join(page.split())
    if path.parent.name.startswith("_") and path.name != "__init__.py":
        for part in ("Input:", "Output:", "Invariant:"):
            assert part in page, f"the docstring has no sentence {part!r}"


@pytest.mark.parametrize("page", [ROOT / "docs" / "design.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_pages_name_files_that_exist(page: Path) -> None:
    paths = re.findall(r"`((?:src/torchfake/|tests/)?\w+(?:/\w+)+)(?:\.py)?/?`", page.read_text())
    assert paths
    for path in paths:
        base = ROOT if path.startswith(("src/", "tests/", "docs/")) else SOURCE
        there = base / path
        assert there.is_dir() or there.with_suffix(".py").exists(), f"{page.name} names {path}"


def test_design_shows_every_package() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    picture = page.partition("```mermaid")[2].partition("```")[0]
    shown = set(re.findall(r"\b_?[a-z]\w*\b", picture))
    assert {package.name for package in PACKAGES} <= shown
