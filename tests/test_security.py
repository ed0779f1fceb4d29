"""What SECURITY.md says of each kind of input: it runs code, or it never does."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_init, estimate, fake_mode, materialize_module, report, summary
from torchfake.distributed import Strategy
from torchfake.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

Run = Callable[..., tuple[int, str, str]]
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50,
}  # fmt: skip


class Evil:
    """What its pickle does when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each test is in a folder in which code of an input would make a folder ``ran``."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path("ran").exists()


def test_code_beside_a_config_is_not_run(run: Run) -> None:
    pytest.importorskip("transformers")
    Path("model").mkdir()
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    Path("model/evil.py").write_text("import os\nos.mkdir('ran')\n")
    Path("model/config.json").write_text(json.dumps({**LLAMA, "auto_map": auto}))
    code, out, _ = run("inspect", "model", "--json")
    assert (code, json.loads(out)["class_name"]) == (0, "LlamaForCausalLM")
    Path("model/config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    code, _, err = run("fit", "model")
    assert code == 2
    assert "code in the checkpoint is not run" in err


@pytest.mark.parametrize("name", ["pytorch_model.bin", ".metadata"])
def test_code_in_a_checkpoint_is_not_run(run: Run, name: str) -> None:
    Path("saved").mkdir()
    data: Any = {"weight": torch.ones(2, 2), "evil": Evil()}
    if name == ".metadata":
        Path("saved", name).write_bytes(pickle.dumps(data))
    else:
        torch.save(data, Path("saved", name))
    other = "" if name == ".metadata" else "saved"
    code, _, err = run("diff", "saved", other or "torch.nn:Flatten")
    assert (code, err[:7]) == (2, "error: ")
    with pytest.raises(CheckpointError):
        materialize_module(deferred_init(nn.Linear, 2, 2), checkpoint="saved")


def test_options_are_data(run: Run) -> None:
    target = ("inspect", "torch.nn:Linear", "-c", "in_features=3")
    for text in ("__import__('os').mkdir('ran')", "[os.mkdir('ran')]", '{"a": 1}'):
        assert run(*target, "-c", f"out_features={text}")[0] == 2
        assert run(*target, "-c", "out_features=3", "--input", f"3={text}")[0] == 2
    Path("gpus.toml").write_text("[a]\ntotal_memory = \"__import__('os').mkdir('ran')\"\n")
    assert run("fit", *target[1:], "--profiles", "gpus.toml")[0] == 2


NAME = '"); __import__("os"); ("'


def named() -> nn.Module:
    """Blocks whose list has a name that would be code where it is not quoted."""
    block = nn.Linear(4, 4)
    return nn.ModuleDict({NAME: nn.ModuleList([block, nn.Linear(4, 4), nn.Linear(4, 4)])})


def test_names_are_quoted_in_code_that_is_run() -> None:
    with fake_mode():
        model = named()
    for engine in ("fsdp2", "fsdp1"):
        for checkpoint in ("none", "full"):
            strategy = Strategy({"dp": 2}, engine=engine, checkpoint=checkpoint)
            tree = ast.parse(strategy.code(model))
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            assert "__import__" not in names
            assert any(NAME in str(text) for text in texts)


def test_names_are_escaped_where_they_are_shown() -> None:
    with fake_mode():
        model = nn.ModuleDict({"<script>ran()</script>\x1b[2J": nn.Linear(300, 300)})
    page = report(summary(model), "page.html").read_text(encoding="utf-8")
    assert "<script>ran" not in page
    assert "\x1b" not in page + str(summary(model)) + summary(model)._repr_html_()


def test_nothing_is_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an id of the Hub alone it is asked, and only where it is not in the cache."""
    asked = []

    def connect(*arguments: Any) -> None:
        asked.append(arguments)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    pytest.importorskip("transformers")
    Path("config.json").write_text(json.dumps(LLAMA))
    assert run("inspect", "config.json", "--batch", "1", "--seq", "4")[0] == 0
    estimate(nn.Linear(3, 3), torch.ones(3), optimizer="sgd")
    assert asked == []


def test_the_page_names_what_is_there() -> None:
    """Its links, and the options and formats that it speaks of."""
    root = Path(__file__).parents[1]
    text = (root / "SECURITY.md").read_text(encoding="utf-8")
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    for address in re.findall(r"\]\((https://[^)]*)\)", text):
        assert f'"{address}"' in project
    help_texts = "".join(path.read_text() for path in (root / "src/torchfake/cli").glob("*.py"))
    for option in re.findall(r"`(--[a-z-]+)", text):
        assert f'"{option}"' in help_texts or option == "--inputs", option
