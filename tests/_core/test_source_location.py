"""Source locations name the innermost line of user code; predicates on code are cached."""

from __future__ import annotations

import gc
import inspect
import types
import weakref

import pytest
import torch

from torchfake import fake_mode
from torchfake._core import source_location
from torchfake._core.source_location import (
    CodePredicate,
    SourceLocation,
    assumed_value_for_caller,
    caller_location,
    is_library_code,
    is_sharding_code,
)


def test_the_location_is_that_of_the_call() -> None:
    found = caller_location()
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert found is not None
    location = SourceLocation(*found)
    assert location.line == line
    assert str(location) == f"{__file__}:{line} in test_the_location_is_that_of_the_call"


def test_library_frames_are_skipped() -> None:
    """torch calls the hook. The innermost location is in the hook, the next one in this test."""
    found = []

    def hook(*_args: object) -> None:
        found.extend([caller_location(1), caller_location(2)])

    layer = torch.nn.Identity()
    layer.register_forward_hook(hook)
    layer(torch.ones(1))
    names = [code.co_name for code, _ in found]
    assert names == ["hook", "test_library_frames_are_skipped"]


def test_one_instruction_has_one_location() -> None:
    with fake_mode():
        made = [torch.empty(i) for i in range(3)]
        x, y = made[1] + made[1], made[1] + made[1]
        layers = [torch.nn.Linear(2, 2).weight for _ in range(2)]
    assert len({id(fake._fake_storage.location) for fake in made}) == 1
    assert x._fake_storage.location != y._fake_storage.location
    assert layers[0]._fake_storage.location is layers[1]._fake_storage.location


def test_locations_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is cleared when full, since locations keep alive code compiled for one call."""
    namespace = {"caller_location": caller_location}
    code = compile("found = caller_location()", "somewhere", "exec")
    exec(code, namespace)
    reference = weakref.ref(code)
    assert namespace["found"][0] is code  # type: ignore[index]
    del namespace, code
    assert reference() is not None
    monkeypatch.setattr(source_location, "_MAX_LOCATIONS", 0)
    assert caller_location() is not None
    assert reference() is None


def test_library_code() -> None:
    assert is_library_code(torch.nn.Linear.forward.__code__)
    assert is_library_code(caller_location.__code__)
    assert not is_library_code(test_library_code.__code__)


def test_sharding_code() -> None:
    from torch.distributed.tensor import distribute_tensor

    assert is_sharding_code(distribute_tensor.__code__)
    assert not is_sharding_code(torch.nn.Linear.forward.__code__)


def new_code() -> types.CodeType:
    return compile("1", "somewhere", "exec")


def test_predicates_are_evaluated_once() -> None:
    seen = []
    predicate = CodePredicate(lambda code: bool(seen.append(code)) or True)
    code = new_code()
    assert predicate(code) is predicate(code) is True
    assert seen == [code]
    assert predicate.cached == {id(code): True}


def test_predicates_keep_no_code_alive() -> None:
    predicate = CodePredicate(lambda code: True)
    code = new_code()
    predicate(code)
    reference = weakref.ref(code)
    del code
    gc.collect()
    assert reference() is None
    assert predicate.cached == {}


def test_assumed_values() -> None:
    """The assumed value is that of the innermost listed function of torch below user code."""
    own = test_assumed_values.__code__
    assert assumed_value_for_caller({id(own): (own, 7.0)}) == 7
    assert assumed_value_for_caller({}) is None
    found = []
    layer = torch.nn.Identity()
    listed = torch.nn.Module._call_impl.__code__
    layer.register_forward_hook(
        lambda *_: found.append(assumed_value_for_caller({id(listed): (listed, 7.0)}))
    )
    layer(torch.ones(1))
    assert found == [None]  # the hook is user code
