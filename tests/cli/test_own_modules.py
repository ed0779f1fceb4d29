"""Modules of the user's own: a file as TARGET, and their inputs as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

Run = Callable[..., tuple[int, str, str]]

FILE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width: int = 64):
            super().__init__()
            self.a = nn.Linear(width, 32)

        def forward(self, x):
            return self.a(x)

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(100, 16)

        def forward(self, ids, mask=None, *, scale=None):
            if ids.dim() and int(ids[0].sum()) < 0:
                raise ValueError("negative")
            found = self.table(ids)
            return found if mask is None else found * mask.unsqueeze(-1)

    class Table(nn.Embedding):
        pass

    def make():
        return Net(128)

    instance = Net()
    instance.register_buffer("steps", torch.tensor(3))
    """


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "net.py").write_text(textwrap.dedent(FILE))
    return tmp_path


def answer(run: Run, *arguments: str) -> dict:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize(
    ("target", "text", "inputs", "output"),
    [
        ("Net", "8,64", {"0": "float32[8, 64]"}, [8, 32]),
        ("Net", "x=8,64", {"x": "float32[8, 64]"}, [8, 32]),
        ("Net", "float64[2, 64]", None, None),  # the weights are float32
        ("make", "float32[3, 128]", {"0": "float32[3, 128]"}, [3, 32]),
        ("instance", "(5, 64)", {"0": "float32[5, 64]"}, [5, 32]),
        ("Text", "ids=int64[4, 7]=99", {"ids": "int64[4, 7]"}, [4, 7, 16]),
        ("Table -c num_embeddings=9 -c embedding_dim=3", "int32[]", {"0": "int32[]"}, [3]),
    ],
)
def test_inputs_as_text(
    run: Run, target: str, text: str, inputs: dict[str, str] | None, output: list[int] | None
) -> None:
    arguments = ("inspect", *f"sub/net.py:{target}".split(), "--input", text)
    if inputs is None:
        code, _, err = run(*arguments)
        assert code == 2
        assert "does not run on these inputs" in err
        return
    said = answer(run, *arguments)
    given = said["inputs"]
    named = given.items() if isinstance(given, dict) else enumerate(given)
    assert {str(key): f"{v['dtype']}{v['shape']}" for key, v in named} == inputs
    assert said["outputs"][""]["shape"] == output


def test_several_inputs_and_all_commands(run: Run) -> None:
    text = ("sub/net.py:Text", "--input", "mask=4,7=1", "--input", "int64[4,7]=3")
    said = answer(run, "inspect", *text, "--optimizer", "adamw", "--dtype", "bf16")
    assert said["inputs"]["ids"]["dtype"] == "int64"
    assert said["inputs"]["mask"]["dtype"] == "bfloat16"  # as the parameters
    assert said["estimate"]["mode"] == "training"
    fitted = answer(run, "fit", "sub/net.py:Net", "--input", "4,64", "--gpu", "t4")["fits"][0]
    assert fitted["size"] == 4
    assert fitted["largest"] > 1000
    options = ("--gpus", "2", "--batch", "6", "--gpu", "h100")
    plan = answer(run, "plan", "sub/net.py:instance", "--input", "x=8,64", *options)
    assert (plan["fits"], plan["micro_batch"]) == (True, 3)


def test_values_are_unknown_unless_they_are_written(run: Run) -> None:
    """What a model asks of them is a question, and what they index is not refused."""
    code, _, err = run("inspect", "sub/net.py:Text", "--input", "int64[4,7]")
    assert code == 2
    assert "--answer typical" in err
    code, _, err = run("inspect", "sub/net.py:Text", "--input", "int64[4,7]=100")
    assert code == 2
    assert "index out of range in self" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("inspect Net --input what", "--input 'what' is no shape: write --input 8,64"),
        ("inspect Net --input 8,-64", "is no shape"),
        ("inspect Net --input intt64[8]", "there is no dtype 'intt64'; did you mean int64"),
        ("inspect Net --input 8,64=wide", "'wide' is no number"),
        ("inspect Net --input uint8[8,64]=-1", "--input 'uint8[8,64]=-1': uint8 has no -1"),
        ("inspect Net --input y=8,64", "Net.forward takes no argument 'y', but x"),
        ("inspect Net --input 8,64 --input 3", "takes fewer inputs than the 2 given: x"),
        ("inspect Net --input x=8,64 --input x=3", "--input x=... is given twice"),
        ("inspect Net --input 8,64 --seq 3", "--input has all sizes: leave out --seq"),
        ("inspect Text --input mask=3", "needs more inputs, with their dtypes and shapes: --inp"),
        ("inspect Net --input 8,63", "in a (Linear), aten.addmm.default("),
        ("inspect Table -c num_embeddings=3 -c embedding_dim=3 --input 3", "--input int64[8,64]"),
        ("fit Net", "argument of its forward (x), such as --input 2,64 (in general"),
        ("fit Net --serve 8 --input 8,64", "--serve says what is run"),
        ("plan Net --gpus 2", "or --inputs file.py:function, which makes them"),
        ("plan Net --gpus 2 --input 8,64 --seq 3", "--input has all sizes"),
        ("plan Net --gpus 2 --input 8,64 --inputs a:b", "give one of them"),
        ("init instance --out here", "sub/net.py:instance is already built"),
    ],
)
def test_one_line_that_names_the_remedy(run: Run, arguments: str, said: str) -> None:
    command, name, *options = arguments.split()
    code, out, err = run(command, f"sub/net.py:{name}", *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_an_instance_is_not_touched(run: Run) -> None:
    said = answer(run, "inspect", "sub/net.py:instance", "--dtype", "bf16")
    assert "is an instance" in said["notes"][0]
    assert said["totals"]["num_parameters"] == 2080
    code, out, _ = run("inspect", "sub/net.py::instance", "--device", "cuda:1")
    assert code == 0
    assert "cuda:1" in out
