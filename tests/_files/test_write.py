"""Values written as they are computed: block by block, and complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests._files.conftest import (
    seeded,
    state_bits,
    values_of,
)
from tests.oracle import bits
from tests.tiny_tiles import tiny_tiles
from torchfake import (
    deferred_init,
    save_materialized,
)
from torchfake._files import write
from torchfake._files.safetensors import Writer
from torchfake._files.state_dict import digest_of
from torchfake._replay import tile_loop


def test_drawn_tensors_are_written_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete: list[Any] = []
    take = lambda *args: complete.append(args)  # noqa: E731
    monkeypatch.setattr(write._TensorWriter, "_write_contents", take)
    with tiny_tiles():
        save_materialized(deferred_init(nn.Linear, 50, 50), tmp_path)
    assert not complete


def test_blocks_are_no_larger_than_tiles_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    original = Writer.write

    def write(self: Any, name: str, start: int, values: torch.Tensor) -> None:
        lengths.append(values.numel())
        original(self, name, start, values)

    monkeypatch.setattr(Writer, "write", write)
    with tiny_tiles():
        save_materialized(deferred_init(nn.Linear, 50, 50), tmp_path)
        assert max(lengths) <= 4 * (tile_loop.block_elements(torch.get_num_threads()) + 32)


class Masked(nn.Module):
    """A fused group that begins before a single operation, and continues after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(16, 16).mul_(0.5))
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(16, 16)))
        noise = torch.randn(16, 16)
        self.other = nn.Parameter(nn.init.trunc_normal_(torch.empty(16, 16)))
        with torch.no_grad():
            self.weight.mul_(self.mask)
            self.other.add_(noise)


@pytest.mark.usefixtures("engine")
def test_nothing_is_written_before_its_last_step(tmp_path: Path) -> None:
    save_materialized(seeded(Masked, deferred=True), tmp_path)
    assert values_of(tmp_path) == state_bits(seeded(Masked, deferred=False))


def test_odd_strides_and_conjugates(tmp_path: Path) -> None:
    def build() -> nn.Module:
        module = nn.Module()
        module.register_buffer("odd", torch.rand(2)[::2])
        module.register_buffer("turned", torch.rand(30, 20).t())
        module.register_buffer("conjugate", torch.randn(4, dtype=torch.complex64).conj())
        module.register_buffer("imaginary", torch.randn(4, dtype=torch.complex64).conj().imag)
        return module

    eager = seeded(build, deferred=False)
    expected = {
        name: bits(t.resolve_conj().resolve_neg()) for name, t in eager.state_dict().items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "_BLOCK_BYTES", 100)
        save_materialized(seeded(build, deferred=True), tmp_path / "deferred")
        save_materialized(eager, tmp_path / "real")
    assert values_of(tmp_path / "deferred") == values_of(tmp_path / "real") == expected
    plain = {n: t for n, t in eager.state_dict().items() if n != "conjugate"}
    assert digest_of({**plain, "conjugate": eager.conjugate.conj()}) != digest_of(
        eager.state_dict()
    )
