"""Completion of options in shells."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_TORCHFAKE_COMPLETE", f"source_{shell}")
    _, out, _ = run()
    assert "torchfake" in out
    assert "_TORCHFAKE_COMPLETE" in out


def test_gpus_are_completed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TORCHFAKE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "torchfake fit transformers:X --gpu h")
    monkeypatch.setenv("COMP_CWORD", "4")
    _, out, _ = run()
    assert out.split() == ["h100pcie-80gb", "h100-80gb", "h100nvl-94gb", "h20-96gb", "h200-141gb"]
