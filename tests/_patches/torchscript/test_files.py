"""Scripts in files: real tensors are read in a mode, fakes are not written."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_init, deferred_mode, fake_mode, is_fake, materialize_module
from torchfake.errors import UnknownValueError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("is_file", [False, True])
def test_read_in_a_mode(is_file: bool, mode: Callable[[], Any], tmp_path: Path) -> None:
    layer = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval())
    source: Any = str(tmp_path / "layer.pt") if is_file else io.BytesIO()
    torch.jit.save(layer, source)
    if not is_file:
        source.seek(0)
    with mode():
        loaded = torch.jit.load(source)
        assert loaded(torch.ones(2, 3)).shape == (2, 4)
    for name, tensor in layer.state_dict().items():
        found = loaded.state_dict()[name]
        assert not is_fake(found)
        assert torch.equal(found, tensor)


@pytest.mark.parametrize("write", ["save", "save_to_buffer", "function"])
def test_fakes_are_not_written(write: str, tmp_path: Path) -> None:
    def saved(module: nn.Module) -> None:
        script = torch.jit.script(module)
        path = str(tmp_path / "layer.pt")
        if write == "function":
            torch.jit.save(script, path)
        else:
            getattr(script, write)(*([path] if write == "save" else []))

    with fake_mode():
        fake = nn.Linear(3, 4)
    deferred = deferred_init(nn.Linear, 3, 4)
    with pytest.raises(UnknownValueError, match=r"torch\.jit\.save.*deferred_init"):
        saved(fake)
    with pytest.raises(UnknownValueError, match=r"torch\.jit\.save.*materialize_module"):
        saved(deferred)
    assert not list(tmp_path.iterdir())
    saved(materialize_module(deferred))
