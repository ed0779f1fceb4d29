"""Every script in examples/, run to its asserts; warnings of torchfake are errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.processes import Finished, run_ranks, run_script

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
STARTED_BY_COMMAND = ("study_an_existing_model", "tensor_parallel")
"""Started as a user starts them, by python and by torchrun. The others are forked from a process
that has imported torch and transformers: that takes longer than what they do.
"""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    for library in ("transformers", "peft", "bitsandbytes"):  # the last: tests/ecosystem
        if library in example.read_text():
            pytest.importorskip(library)
    is_distributed = "torchrun" in example.read_text()
    if example.stem in STARTED_BY_COMMAND:
        finished = [start_by_command(example, tmp_path, is_distributed=is_distributed)]
    elif is_distributed:
        finished = run_ranks(example, tmp_path, num_ranks=2)
    else:
        finished = [run_script(example, tmp_path)]
    for process in finished:
        assert process.exit_code == 0, process.stdout + process.stderr
        assert process.stdout.strip(), "an example prints something"


def start_by_command(example: Path, folder: Path, *, is_distributed: bool) -> Finished:
    """``python EXAMPLE`` or ``torchrun --nproc-per-node 2 EXAMPLE``."""
    launcher = []
    if is_distributed:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, "-W", "error:::torchfake", *launcher, str(example)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"} if is_distributed else None,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("assert 1 == 2, 'not equal'", "AssertionError: not equal"),
        (
            "exec('import warnings; warnings.warn(0)', {'__name__': 'torchfake.fx'})",
            "UserWarning: 0",
        ),
        ("raise SystemExit('wrong')", "wrong"),
    ],
)
def test_a_script_that_fails_is_noticed(statement: str, error: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"print('started')\n{statement}\n")
    finished = run_script(script, tmp_path)
    assert finished.exit_code == 1
    assert finished.stdout == "started\n"
    assert finished.stderr.endswith(f"{error}\n")
