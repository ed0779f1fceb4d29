"""Libraries are imported without garbage collection, which is as before afterwards."""

from __future__ import annotations

import gc
import sys

import pytest

from torchfake.inspect.targets.imports import importing


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nothing_is_collected_meanwhile(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_a_failing_import_turns_collection_on_again() -> None:
    was_enabled = gc.isenabled()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled() is was_enabled


def test_frozen_objects_are_counted_after_an_import_only(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(1) or 1)
    was_enabled = gc.isenabled()
    gc.enable()
    try:
        with importing():
            pass
        assert not counted
        with importing():
            monkeypatch.setitem(sys.modules, "this_is_not_a_module", gc)
        assert counted
    finally:
        (gc.enable if was_enabled else gc.disable)()
