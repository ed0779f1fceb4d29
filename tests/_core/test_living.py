"""The sign lives while a fake or a mode does; changes are undone when the last holder is freed."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from torchfake._core import living


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> living._State:
    """A separate state, since fakes of other tests may live."""
    state = living._State()
    monkeypatch.setattr(living, "state", state)
    return state


def test_the_sign_lives_as_long_as_it_is_held(fresh: living._State) -> None:
    begun: list[str] = []
    fresh.on_first = partial(begun.append, "begun")
    assert fresh.find() is None
    first = living.take()
    second = living.take()
    assert first is second is fresh.find()
    assert begun == ["begun"]
    del first
    assert fresh.find() is second
    del second
    assert fresh.find() is None


def test_what_is_added_meanwhile_is_undone_in_order_and_once(fresh: living._State) -> None:
    undone: list[str] = []
    for round_ in ("first", "second"):
        sign = living.take()
        for name in ("a", "b"):
            fresh.to_undo.append(partial(undone.append, f"{round_} {name}"))
        assert not any(each.startswith(round_) for each in undone)
        del sign
    assert undone == ["first a", "first b", "second a", "second b"]


def test_an_interrupted_begin_is_undone(fresh: living._State) -> None:
    undone: list[str] = []

    def interrupted() -> None:
        fresh.to_undo.append(partial(undone.append, "undone"))
        raise KeyboardInterrupt

    fresh.on_first = interrupted
    with pytest.raises(KeyboardInterrupt):
        living.take()
    assert undone == ["undone"]
    assert fresh.find() is None


def test_threads_share_the_sign() -> None:
    barrier, signs = threading.Barrier(8), []

    def take() -> None:
        barrier.wait()
        signs.append(living.take())

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(signs)) == 1
