"""All places name one version, and the metadata say what is true."""

from __future__ import annotations

import re
from pathlib import Path

import torchfake

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def cited(key: str) -> str:
    found = re.search(rf"^{key}: (.*)$", CITATION, re.MULTILINE)
    assert found is not None, key
    return found[1]


def test_one_version_and_one_date() -> None:
    """The newest section of the changelog that has a number is the version of the package."""
    assert 'dynamic = ["version"]' in PROJECT
    newest = re.search(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", CHANGES, re.MULTILINE)
    assert newest is not None
    assert newest[1] == torchfake.__version__ == cited("version")
    assert newest[2] == cited("date-released")


def test_the_pythons_are_those_that_are_accepted() -> None:
    listed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    least = re.search(r'requires-python = ">=(3\.\d+)"', PROJECT)
    assert least is not None
    numbers = [int(name.partition(".")[2]) for name in listed]
    assert listed[0] == least[1]
    assert numbers == [*range(numbers[0], numbers[-1] + 1)]


def test_addresses_are_of_one_repository() -> None:
    home = re.search(r'^Homepage = "(.*)"$', PROJECT, re.MULTILINE)
    assert home is not None
    assert cited("repository-code") == home[1]
    urls = PROJECT.partition("[project.urls]")[2].partition("\n\n")[0]
    addresses = re.findall(r'= "(https://github\.com/[^"]*)"', urls)
    assert all(address.startswith(home[1]) for address in addresses)
    assert torchfake.errors.DOCUMENTATION.startswith(home[1])


def test_the_licence_is_one() -> None:
    assert cited("license") == "BSD-3-Clause"
    assert 'license = "BSD-3-Clause"' in PROJECT
    assert (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause License")


def test_readme_is_of_one_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 160
