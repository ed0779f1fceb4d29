"""Calls with one tensor of another size are refused as in eager: one in 25 in the suite.

``--all-samples`` makes all of the first sample of each operator, as does
``python -m tests.opinfo.wrong_sizes --limit 1``.
"""

import re
import subprocess
import sys

import pytest

from tests.opinfo.shortfalls import WRONG_SIZES
from tests.strides.calls import NAMES


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_wrong_sizes_are_refused_as_in_eager(request):
    is_full = request.config.getoption("--all-samples")
    command = [sys.executable, "-m", "tests.opinfo.wrong_sizes", "--limit=1"]
    command += [] if is_full else ["--step=25"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = re.match(r"(\d+) calls", done.stdout)
    assert found is not None
    assert int(found[1]) > 400
    assert done.returncode == 0, done.stdout


def test_the_list_names_operators():
    assert set(WRONG_SIZES) <= set(NAMES)
