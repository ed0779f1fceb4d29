"""Directories with checkpoints, and ids of the Hub: what is really in the files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.inspect.targets.conftest import LLAMA
from torchfake import errors, fake_mode
from torchfake.inspect import resolve
from torchfake.inspect.inspection import inspect_target
from torchfake.inspect.question import Question
from torchfake.inspect.targets import hub
from torchfake.inspect.targets.build import build

Tensors = dict[str, torch.Tensor]


def weights(dtype: torch.dtype = torch.int8) -> Tensors:
    """Quantized weights as GPTQ's, of two of three layers."""
    layers = {f"model.layers.{i}.mlp.up_proj" for i in range(2)}
    tensors: Tensors = {f"{name}.qweight": torch.zeros(8, 128, dtype=dtype) for name in layers}
    tensors |= {f"{name}.scales": torch.zeros(1, 128, dtype=torch.float16) for name in layers}
    return tensors | {"model.embed_tokens.weight": torch.zeros(100, 64, dtype=torch.bfloat16)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file(weights(), tmp_path / "model.safetensors")
    return tmp_path


def test_a_directory_is_shown_as_it_is_saved(folder: Path) -> None:
    found = inspect_target(str(folder))
    assert found.tree.class_name == "LlamaForCausalLM"
    expected = sum(tensor.nbytes for tensor in weights().values())
    assert found.tree.size.parameter_bytes == expected
    assert set(found.summary.by_dtype) == {"bfloat16", "int8", "float16"}
    layers = found.tree.children[0].children[1]
    assert (layers.children[0].repeat, layers.children[0].class_name) == (2, "LlamaDecoderLayer")
    assert found.notes[0] == "as saved: 5 tensors, from the headers of its files"


def test_a_quantized_checkpoint_shows_both_sizes(folder: Path) -> None:
    """As its files are, and as its config is without quantization."""
    by_library = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    for config in (by_library, {"quant_method": "gptq", "bits": 4}):
        (folder / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": config}))
        found = inspect_target(str(folder))
        assert found.weights is not None
        assert found.weights.num_bytes == sum(tensor.nbytes for tensor in weights().values())
        size = found.tree.size
        assert found.weights.unquantized_bytes == size.parameter_bytes + size.buffer_bytes
        assert "as saved, " in str(found)
        assert f"scheme     quantization_config: {config['quant_method']}" in str(found)
        assert found.notes[0].startswith("built unquantized: ")
    (folder / "model.safetensors").unlink()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": by_library}))
    found = inspect_target(str(folder))
    assert found.weights is not None
    assert (found.weights.scheme, found.weights.num_quantized > 0) == ("int8", True)


def test_without_a_config_there_are_no_classes(folder: Path) -> None:
    (folder / "config.json").unlink()
    found = inspect_target(str(folder))
    assert found.tree.class_name == "Checkpoint"
    with pytest.raises(errors.TargetError, match=r"no config\.json, so 'a' changes nothing"):
        resolve(str(folder), overrides=["a=3"])
    with pytest.raises(errors.InputsError):
        inspect_target(str(folder), question=Question(batch=1))


def test_what_is_run_or_changed_is_the_model_of_the_config(folder: Path) -> None:
    found = inspect_target(str(folder), question=Question(batch=1, seq=4))
    assert found.notes == ("built from its config: its checkpoint was not read",)
    assert found.summary.by_dtype.keys() == {"bfloat16", "float32"}
    changed = inspect_target(str(folder), overrides=["num_hidden_layers=1"])
    assert changed.notes == ()


def test_weights_that_cannot_be_read_are_a_note(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    found = inspect_target(str(folder))
    assert found.notes[-1] == "sizes are those of its config"
    assert found.tree.size.num_parameters


@pytest.mark.parametrize("as_json", [False, True])
def test_a_truncated_checkpoint_is_said_on_one_line(folder: Path, run: Any, as_json: bool) -> None:
    """What the config says is shown, and the exit code tells a script."""
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    code, shown, _ = run("inspect", str(folder), *(["--json"] if as_json else []))
    assert code == 1
    (line,) = [line for line in shown.splitlines() if "cannot be read" in line]
    assert f"checkpoint unreadable: {file} cannot be read: it is damaged, truncated" in line
    assert as_json or line == shown.splitlines()[0]
    assert "LlamaForCausalLM" in shown


def test_a_checkpoint_is_compared_with_the_model_of_its_config(folder: Path, run: Any) -> None:
    """In the first line, and by the exit code; what a library ignores when it loads counts not."""
    with fake_mode():
        model = build(resolve(str(folder))).module
    state = {name: torch.zeros(t.shape) for name, t in model.state_dict().items()}
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}

    def shown(tensors: Tensors) -> tuple[int, str]:
        save_file(tensors, folder / "model.safetensors")
        code, out, _ = run("inspect", str(folder))
        return code, out.splitlines()[0].partition(" | checkpoint ")[2]

    assert shown({**state, **old}) == (0, "")
    assert shown({**state, "extra": torch.zeros(3)}) == (
        0, "with tensors that its config's model lacks: 1 tensor unknown"
    )  # fmt: skip
    state["lm_head.weight"] = torch.zeros(3, 64)
    assert shown(state) == (1, "does not match its config: 1 tensor of another shape")
    del state["model.norm.weight"]
    state["extra"] = torch.zeros(3)
    said = "incomplete: 1 tensor missing, 1 of another shape, 1 unknown"
    assert shown(state) == (1, said)
    found = inspect_target(str(folder))
    assert "missing: model.norm.weight" in found.notes
    assert found.to_dict()["checkpoint"] == f"checkpoint {said}"
    base = {name.removeprefix("model."): t for name, t in state.items() if name.startswith("model")}
    assert shown(base) == (1, "incomplete: 2 tensors missing")
    wrapped = {f"module.{name}": t for name, t in model.state_dict().items()}
    number = len(wrapped)
    assert shown({n: torch.zeros(t.shape) for n, t in wrapped.items()}) == (
        1, f"does not load: {number} names have the prefix 'module.'"
    )  # fmt: skip


def test_names_that_transformers_changes_are_not_compared(tmp_path: Path) -> None:
    """``LayerNorm.gamma`` of old checkpoints, and experts that are merged."""
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"embeddings.LayerNorm.gamma": torch.zeros(12)}, tmp_path / "model.safetensors")
    found = inspect_target(str(tmp_path))
    assert (found.checkpoint.text, found.checkpoint.loads) == ("", True)
    assert found.notes[-1].startswith("not compared with the model of its config")


def test_dtypes_that_torch_lacks_are_named(folder: Path) -> None:
    header = {"w": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + b"\0\0"
    (folder / "model.safetensors").write_bytes(content)
    said = "w is F4, which torch does not have: not counted"
    assert said in inspect_target(str(folder)).notes


# Ids of the Hub. huggingface_hub is replaced at the calls that would reach a network.


def hub_of(config: Path | None, error: Exception | None = None) -> Any:
    """A huggingface_hub with one config, cached if there is no error that a download raises."""

    def raised(*args: Any, **kwargs: Any) -> Any:
        assert error is not None
        raise error

    def metadata(repo: str, revision: str | None) -> Any:
        info = SimpleNamespace(shape=[3, 4], dtype="I32")
        files = {"model.safetensors": SimpleNamespace(tensors={"model.norm.weight": info})}
        return SimpleNamespace(files_metadata=files)

    return SimpleNamespace(
        try_to_load_from_cache=lambda *args, **kwargs: None if config is None else str(config),
        get_hf_file_metadata=raised, hf_hub_url=lambda *args, **kwargs: "",
        hf_hub_download=raised, get_safetensors_metadata=metadata,
    )  # fmt: skip


def test_an_id_is_looked_up_in_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_hub", lambda: hub_of(folder / "config.json"))
    found = inspect_target("some-one/model@main")
    assert set(found.summary.by_dtype) == {"bfloat16", "int8", "float16"}
    (folder / "model.safetensors").unlink()
    found = inspect_target("some-one/model")
    assert found.summary.by_dtype == {"int32": (12, 48)}
    assert build(resolve("some-one/model")).module.config.num_hidden_layers == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "ConnectError",
            "as a Hugging Face Hub id, it is not in the cache, and the Hub cannot be reac",
        ),
        ("RepositoryNotFoundError", "and no model of that id on the Hub"),
        ("EntryNotFoundError", r"has no config\.json on the Hub"),
        ("GatedRepoError", "is gated: ask for access on its page"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = type(name, (Exception,), {})("several\nlines")
    monkeypatch.setattr(hub, "_hub", lambda: hub_of(None, error))
    with pytest.raises(errors.TargetError, match=said) as caught:
        resolve("some-one/model")
    assert "\n" not in str(caught.value)
