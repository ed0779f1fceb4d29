"""Checks what is in a wheel and an sdist: ``python tests/release/check_files.py FILE...``.

Input: files of ``python -m build``. Output: a line for each; an AssertionError that names what is
missing or does not belong. Invariant: the package is in it whole, and nothing else but its metadata
and pages.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {"README.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "LICENSE"}


def package_files() -> set[str]:
    """The files of the package, by their paths from src."""
    found = (ROOT / "src").rglob("*")
    return {
        path.relative_to(ROOT / "src").as_posix()
        for path in found
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def check_wheel(file: Path) -> int:
    """The package and its metadata."""
    names = set(zipfile.ZipFile(file).namelist())
    stem = "-".join(file.name.split("-")[:2])
    metadata = {name for name in names if name.startswith(f"{stem}.dist-info/")}
    _check_equal(file, names - metadata, package_files())
    assert {Path(name).name for name in metadata} >= {"METADATA", "entry_points.txt", "LICENSE"}
    return len(names)


def check_sdist(file: Path) -> int:
    """The package, its pages, and what builds it."""
    top = file.name.removesuffix(".tar.gz")
    with tarfile.open(file) as archive:
        names = {member.name for member in archive.getmembers() if member.isfile()}
    assert all(name.startswith(f"{top}/") for name in names), "files beside the folder"
    inside = {name.removeprefix(f"{top}/") for name in names}
    expected = {f"src/{name}" for name in package_files()} | PAGES
    _check_equal(file, inside, expected | {"pyproject.toml", "PKG-INFO", ".gitignore"})
    return len(names)


def _check_equal(file: Path, found: set[str], expected: set[str]) -> None:
    assert "torchfake/py.typed" in {name.removeprefix("src/") for name in found}, "no py.typed"
    missing, strange = sorted(expected - found), sorted(found - expected)
    assert not missing, f"{file.name} lacks {missing}"
    assert not strange, f"{file.name} has {strange}"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        number = check_wheel(path) if path.suffix == ".whl" else check_sdist(path)
        print(f"{path.name}: {number} files, {path.stat().st_size:,} bytes")
