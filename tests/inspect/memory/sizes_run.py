"""Which sizes a search runs."""

from __future__ import annotations

from typing import Any

import pytest

from torchfake.inspect.memory import peaks as of_step


def runs_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sizes that are run from now on."""
    ran: list[Any] = []
    run = of_step.Peaks._run

    def noted(peaks: Any, gpu: Any, size: Any, alike: Any) -> Any:
        ran.append(size)
        return run(peaks, gpu, size, alike)

    monkeypatch.setattr(of_step.Peaks, "_run", noted)
    return ran
