"""What needs no more than torch and the test extra, at the places that were once wrong; and the
table in the docs, which is what the programs expect.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.program import PLACES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "distributed" / "frameworks.md"


def test_programs_of_torch_and_accelerate() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.run", "--suite"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def declared() -> dict[str, tuple[str, ...]]:
    """What each program expects: read, not imported, since the frameworks may not be there."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(HERE.glob("*_programs.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, "decorator_list", ()):
                name, *expected = map(ast.literal_eval, decorator.args)
                found[name] = tuple(expected)
    return found


def rows() -> dict[str, tuple[str, ...]]:
    """The rows of the table, by program."""
    cells = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines()]
    by_name = {row[0]: row[1:] for row in cells if len(row) == 1 + len(PLACES)}
    return {name: tuple(row) for name, row in by_name.items() if set(row) <= set(SHOWN.values())}


SHOWN = {"equal": "yes", "error": "error", "-": "-"}


@pytest.mark.parametrize("name", sorted(declared()))
def test_the_table_in_the_docs(name: str) -> None:
    assert rows()[name] == tuple(SHOWN[place] for place in declared()[name])


def test_the_table_has_no_other_rows() -> None:
    assert rows().keys() == declared().keys()
