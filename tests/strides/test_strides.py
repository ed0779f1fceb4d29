"""A part of each sweep: one arrangement in 47 or 193, others for each operator."""

import re
import subprocess
import sys

import pytest

from tests.strides.calls import NAMES
from tests.strides.shortfalls import ACCEPTED, LAID_OUT, OUTPUTS

NUM_PARTS = 2


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_strides_equal_eager(part):
    command = [sys.executable, "-m", "tests.strides.sweep", "--limit=1", "--step=47"]
    command += [f"--part={part}", f"--parts={NUM_PARTS}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    found = re.match(r"(\d+) calls", done.stdout)
    assert found is not None
    assert int(found[1]) > 400
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_outputs_equal_eager():
    command = [sys.executable, "-m", "tests.strides.sweep", "--outputs", "--limit=1", "--step=193"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout


def test_the_lists_name_operators():
    assert {*ACCEPTED, *LAID_OUT, *OUTPUTS} <= set(NAMES)
