"""from_pretrained in a mode: all parameters and buffers, and the values of the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from tests._materialize.architectures import small_config
from tests.ecosystem.huggingface.pretrained import assert_loads_as_eager, tensors_of
from torchfake import deferred_mode, fake_mode, is_deferred, is_fake, materialize_module
from torchfake._graph.file_slices import FileSlice

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

LANGUAGE = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101,
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models in several forms, a directory each."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LANGUAGE))
    tied = transformers.LlamaConfig(**LANGUAGE, tie_word_embeddings=True)
    llama.save_pretrained(folder / "llama")
    llama.save_pretrained(folder / "sharded", max_shard_size="40KB")
    for name, is_zip in (("bin", True), ("old bin", False)):
        llama.config.save_pretrained(folder / name)
        state = folder / name / "pytorch_model.bin"
        torch.save(llama.state_dict(), state, _use_new_zipfile_serialization=is_zip)
    llama.to(torch.bfloat16).save_pretrained(folder / "bfloat16")
    with_tied = transformers.LlamaForCausalLM(tied)
    with_tied.save_pretrained(folder / "tied")
    tied.save_pretrained(folder / "tied bin")
    torch.save(with_tied.state_dict(), folder / "tied bin" / "pytorch_model.bin")
    transformers.BertForPreTraining(transformers.BertConfig(**LANGUAGE)).save_pretrained(
        folder / "bert"
    )
    mixture = transformers.MixtralConfig(**LANGUAGE, num_local_experts=4)
    transformers.MixtralForCausalLM(mixture).save_pretrained(folder / "mixtral")
    return folder


def loading(cls: str, name: str, **options: Any) -> Callable[[Path], Callable[[], Any]]:
    load = getattr(transformers, cls).from_pretrained
    return lambda folder: lambda: load(folder / name, **options)


CASES = {
    "whole": loading("LlamaForCausalLM", "llama"),
    "in shards": loading("LlamaForCausalLM", "sharded"),
    "tied": loading("LlamaForCausalLM", "tied"),
    "tied, torch.save": loading("LlamaForCausalLM", "tied bin"),
    "automatic class and dtype": loading("AutoModelForCausalLM", "bfloat16", dtype="auto"),
    "cast down": loading("LlamaForCausalLM", "llama", dtype=torch.bfloat16),
    "cast up": loading("LlamaForCausalLM", "bfloat16", dtype=torch.float32),
    "torch.save": loading("LlamaForCausalLM", "bin"),
    "torch.save, old": loading("LlamaForCausalLM", "old bin"),
    "without its head": loading("LlamaModel", "tied"),
    "new head": loading("BertForSequenceClassification", "bert", num_labels=5),
    "other sizes": loading("BertModel", "bert", vocab_size=120, ignore_mismatched_sizes=True),
    "experts merged": loading("MixtralForCausalLM", "mixtral", dtype=torch.bfloat16),
    "device map": loading("LlamaForCausalLM", "sharded", device_map="auto"),
}


@pytest.mark.parametrize("name", CASES)
def test_from_pretrained(name: str, saved: Path) -> None:
    """Fakes with eager's metadata; deferred tensors with eager's values, generator included."""
    assert_loads_as_eager(CASES[name](saved))


PLACES: dict[str, tuple[Any, set[int]]] = {
    "cuda": ("cuda", {0}),
    "a number": ({"": 0}, {0}),
    "the second": ({"": "cuda:1"}, {1}),
    "auto": ("auto", {0, 1}),
}


@pytest.mark.parametrize("place", PLACES)
def test_onto_fake_cuda(place: str, saved: Path) -> None:
    device_map, expected = PLACES[place]
    name = "llama" if place == "auto" else "tied"
    eager = transformers.LlamaForCausalLM.from_pretrained(saved / name)
    for mode in (fake_mode, deferred_mode):
        with mode(fake_cuda=2):
            model = transformers.LlamaForCausalLM.from_pretrained(
                saved / name, device_map=device_map
            )
        assert {tensor.device.type for tensor in tensors_of(model).values()} == {"cuda"}
        assert {tensor.device.index for tensor in tensors_of(model).values()} <= expected
        is_tied = model.lm_head.weight is model.model.embed_tokens.weight
        assert is_tied is (name == "tied")
    materialize_module(model, device="cpu")
    for name, tensor in tensors_of(model).items():
        assert torch.equal(tensor, tensors_of(eager)[name])


def write_sparse(folder: Path, num_layers: int) -> None:
    """A checkpoint whose bytes are not there: the file has a header, and is as large as it says."""
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": num_layers}
    config = transformers.LlamaConfig(**sizes, dtype="bfloat16")
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stop = 0
    for name, tensor in model.state_dict().items():
        start, stop = stop, stop + tensor.nbytes
        header[name] = {
            "dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, stop]
        }  # fmt: skip
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + stop)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for its memory")
def test_ten_gigabytes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cast or not; nor held."""
    write_sparse(tmp_path, 24)
    assert (tmp_path / "model.safetensors").stat().st_size > 10_000_000_000
    reads: list[int] = []
    original = FileSlice._read_into
    monkeypatch.setattr(
        FileSlice, "_read_into", lambda s, view: (reads.append(len(view)), original(s, view))
    )
    for mode in (fake_mode, deferred_mode):
        before = resident_bytes()
        with mode():
            model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
        assert all(map(is_fake, tensors_of(model).values()))
        assert resident_bytes() - before < 100_000_000
        assert sum(reads) < 1_000_000
    assert is_deferred(model)


# All architectures, under `nox -s ecosystem`.

FEW = ["bert", "clip", "qwen2_moe", "t5"]
MAX_PARAMETERS = 250_000_000


@pytest.mark.parametrize("name", sorted(MODEL_MAPPING_NAMES) if "ECOSYSTEM" in os.environ else FEW)
def test_architectures(name: str, tmp_path: Path) -> None:
    """Saved at a reduced size, and loaded. What eager itself does not build, save and load is left
    out: it needs another library, or sizes that are not found.
    """
    config = small_config(name, MAX_PARAMETERS, saved=True)
    assert config is not None or name not in FEW
    if config is None:
        pytest.skip("no reduced size is found that transformers builds")
    model = transformers.AutoModel.from_config(config)
    model.save_pretrained(tmp_path)
    try:
        type(model).from_pretrained(tmp_path)
    except Exception as error:  # whatever it raises in eager
        pytest.skip(f"eager does not load it: {error}")
    assert_loads_as_eager(lambda: type(model).from_pretrained(tmp_path))
