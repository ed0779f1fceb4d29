"""tensordict on fakes and on deferred tensors: containers, modules as containers, ensembles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictParams, lazy_stack
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from torchfake import deferred_mode, fake_mode, is_fake, materialize_tensor
from torchfake.errors import UnsupportedOpError


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def described(td: Any) -> list[Any]:
    return sorted(
        (str(key), t.shape, t.dtype, t.requires_grad, isinstance(t, nn.Parameter))
        for key, t in td.items(True, True)
    )


def container() -> tuple[Any, Any]:
    shared = torch.randn(3, 4)
    td = TensorDict({"a": shared, "b": {"c": torch.arange(3), "d": shared}}, [3])
    return td, (td.bytes(), td.bytes(count_duplicates=False), td.batch_size)


def arithmetic() -> tuple[Any, Any]:
    td = TensorDict({"a": torch.randn(6, 4)}, [6])
    td[0] = td[1].clone()
    parts = torch.cat(list((td * 2 + 1).split(2)))
    return parts, (len(parts), described(td.reshape(3, 2)), described(td.to(torch.float64)))


def stacks() -> tuple[Any, Any]:
    tds = [TensorDict({"a": torch.randn(2)}, []) for _ in range(3)]
    return torch.stack(tds), described(lazy_stack(tds))


def of_module() -> tuple[Any, Any]:
    td = TensorDict.from_module(network())
    return td.clone(), (td.bytes(), described(td))


def with_gradients() -> tuple[Any, Any]:
    module = network()
    td = TensorDict.from_module(module)
    module(torch.ones(5, 3)).sum().backward()
    return td.data.clone(), (td.bytes(), described(td.grad))


def into_module() -> tuple[Any, Any]:
    module = network()
    ones = TensorDict.from_module(module).data.apply(torch.ones_like)
    with ones.to_module(module):
        shape = module(torch.ones(5, 3)).shape
    return ones, (shape, described(TensorDict.from_module(module)))


def ensemble() -> tuple[Any, Any]:
    parameters = TensorDict.from_modules(*[nn.Linear(3, 2) for _ in range(3)], as_module=True)
    base = nn.Linear(3, 2)

    def call(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        with parameters.to_module(base):
            return base(x)  # type: ignore[no-any-return]

    shape = torch.vmap(call, (0, None))(parameters, torch.ones(5, 3)).shape
    return parameters.data.clone(), (shape, parameters.bytes())


def parameters() -> tuple[Any, Any]:
    td = TensorDictParams(TensorDict({"w": torch.randn(3)}, []))
    return td.data.clone(), [p.shape for p in td.parameters()]


def modules() -> tuple[Any, Any]:
    first = TensorDictModule(nn.Linear(3, 4), ["x"], ["h"])
    both = TensorDictSequential(first, TensorDictModule(nn.Linear(4, 1), ["h"], ["y"]))
    td = both(TensorDict({"x": torch.ones(5, 3)}, [5]))
    return TensorDict.from_module(both).data.clone(), (described(td), td.bytes())


PROGRAMS: list[Callable[[], tuple[Any, Any]]] = [
    container, arithmetic, stacks, of_module, with_gradients, into_module, ensemble, parameters,
    modules,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of eager programs too
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[[], tuple[Any, Any]], mode: Any) -> None:
    torch.manual_seed(0)
    eager, expected = program()
    torch.manual_seed(0)
    with mode():
        td, answer = program()
    assert answer == expected
    assert described(td) == described(eager)
    for key, value in eager.items(True, True):
        tensor = td.get(key)
        assert is_fake(tensor)
        if mode is deferred_mode:
            assert torch.equal(materialize_tensor(tensor.detach()), value), key


def test_bytes_after_the_mode() -> None:
    with fake_mode():
        td = TensorDict.from_module(network())
    assert td.bytes() == TensorDict.from_module(network()).bytes()


def test_memory_mapping_is_refused_by_name(tmp_path: Any) -> None:
    with (
        fake_mode(),
        pytest.raises(UnsupportedOpError, match=r"aten\.from_file.* maps a file into memory"),
    ):
        TensorDict({"a": torch.randn(3)}, [3]).memmap(tmp_path)
