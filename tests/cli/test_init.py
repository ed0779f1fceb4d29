"""``torchfake init``: what it writes, what it prints, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import

Run = Callable[..., tuple[Any, str, str]]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a config and a module of models."""
    (tmp_path / "llama.json").write_text(json.dumps(CONFIG))
    (tmp_path / "init_here.py").write_text(
        "import torch\n"
        "def net(width=4): return torch.nn.Linear(width, 3)\n"
        "def interrupted(): raise KeyboardInterrupt\n"
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("init_here", None)


def eager(seed: int, dtype: torch.dtype = torch.float32) -> Any:
    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(dtype)
    try:
        return LlamaForCausalLM(LlamaConfig(**CONFIG))
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_model_of_transformers(run: Run, folder: Path, dtype: str) -> None:
    code, out, err = run("init", "llama.json", "--seed", "3", "--dtype", dtype, "--out", "made/it")
    assert (code, err) == (0, "")
    *files, total = out.splitlines()
    assert files == [
        "made/it/config.json", "made/it/generation_config.json", "made/it/model.safetensors"
    ]  # fmt: skip
    assert total.startswith("474 kB in " if dtype == "f32" else "239 kB in ")
    expected = eager(3, torch.float32 if dtype == "f32" else torch.bfloat16)
    loaded = LlamaForCausalLM.from_pretrained(folder / "made/it")
    for (name, one), (other_name, other) in zip(
        expected.named_parameters(), loaded.named_parameters(), strict=True
    ):
        assert name == other_name
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_callable_in_shards_as_json(run: Run, folder: Path) -> None:
    arguments = ("init", "init_here:net", "-c", "width=50", "-o", "out", "--json")
    code, out, err = run(*arguments, "--max-shard-size", "300", "--threads", "1")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["files"] == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]  # fmt: skip
    assert said["num_bytes"] == sum(p.stat().st_size for p in (folder / "out").iterdir())
    torch.manual_seed(0)
    weight = torch.nn.Linear(50, 3).weight
    index = json.loads((folder / "out" / "model.safetensors.index.json").read_text())
    file = folder / "out" / index["weight_map"]["weight"]
    assert torch.equal(safetensors.torch.load_file(file)["weight"], weight)


def test_again_and_with_another_seed(run: Run) -> None:
    assert run("init", "init_here:net", "--out", "out")[0] == 0
    assert run("init", "init_here:net", "--out", "out")[0] == 0
    code, out, err = run("init", "init_here:net", "--out", "out", "--seed", "1")
    assert (code, out) == (2, "")
    assert err == (
        "error: out/model.safetensors was written for a different model, config or seed: "
        "remove it, or give another directory\n"
    )


def test_what_is_wrong_is_one_line(run: Run, folder: Path) -> None:
    assert run("init", "nowhere:net", "--out", "out")[0] == 2
    assert not (folder / "out").exists()
    code, _, err = run("init", "init_here:interrupted", "--out", "out")
    assert (code, err) == (130, "error: interrupted\n")
    (folder / "file").touch()
    code, _, err = run("init", "init_here:net", "--out", "file")
    assert (code, err) == (2, "error: file is a file: give a directory\n")
    code, _, err = run("init", "init_here:net", "--out", "file/below")
    assert code == 2
    assert "Not a directory" in err
    code, _, err = run("init", "init_here:net", "--out", "out", "--max-shard-size", "many")
    assert code == 2
    assert err == (
        "error: max_shard_size is 'many': give a number of bytes, or a size such as 200MB or 5GB\n"
    )
    code, _, err = run("init", "init_here:net")
    assert code == 2
    assert "--out" in err


def test_help_says_what_the_weights_are(run: Run) -> None:
    code, out, _ = run("init", "--help")
    assert code == 0
    assert "torch.manual_seed(SEED)" in out
