"""After ``materialize_module`` nothing that is reached from the module is fake, and its values are
eager's.
"""

import collections
import contextvars
import copy
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch import Tensor, distributions, nn

from torchfake import (
    deferred_init,
    is_fake,
    materialize_module,
    save_materialized,
)
from torchfake._materialize.reachable import Search
from torchfake.errors import NotDeferredError


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


class Named(collections.namedtuple("Named", "value")):
    pass


def _closure(x: Tensor) -> Callable[[], Tensor]:
    return lambda: x


def _default(x: Tensor) -> Callable[..., Tensor]:
    def function(y: Tensor = x) -> Tensor:
        return y

    return function


def _cached(x: Tensor) -> Callable[[], Tensor]:
    @functools.lru_cache
    def function() -> Tensor:
        return x + 1

    function()
    return function


def _on_a_parameter(x: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(2))
    parameter.extra = Plain(x)  # type: ignore[attr-defined]
    return parameter


def _of_class(x: Tensor) -> Any:
    class Holding:
        table: ClassVar[dict[str, Any]] = {"values": [x]}

    return Holding()


def _property(x: Tensor) -> Any:
    class Holding:
        value = property(lambda _: x)

    return Holding()


def _method_of_base(x: Tensor) -> type:
    class Base:
        @staticmethod
        def value() -> Tensor:
            return x

    class Holding(Base):
        pass

    return Holding


def _cached_method(x: Tensor) -> Any:
    class Holding:
        @functools.cache  # noqa: B019
        def value(self) -> Tensor:
            return x

    holding = Holding()
    holding.value()
    return holding


def _array(x: Tensor) -> Any:
    array = numpy.empty((1, 2), dtype=object)
    array[0, 1] = x
    return array


def _of_metaclass(x: Tensor) -> Any:
    class Registry(type):
        tables: ClassVar[list[Tensor]] = [x]

    return Registry("Registered", (), {})


def _of_inner_class(x: Tensor) -> Any:
    class Configured:
        class Constants:
            table = x

    return Configured()


def _started(x: Tensor) -> Iterator[Tensor]:
    def generate() -> Iterator[Any]:
        mine = [x]
        yield None
        while True:
            yield mine[0]

    generator = generate()
    next(generator)
    return generator


def _of_thread(x: Tensor) -> Any:
    local = threading.local()
    local.value = x
    return local


def _in_context(x: Tensor) -> Any:
    variable = contextvars.ContextVar("test")
    variable.set(x)
    return variable


def _default_of_context(x: Tensor) -> Any:
    variable = contextvars.ContextVar("test", default=x)
    variable.set(None)
    return lambda: contextvars.Context().run(variable.get)


def _finalizing(x: Tensor) -> Any:
    around = Plain(None)
    around.end = weakref.finalize(around, print, x)  # type: ignore[attr-defined]
    around.end.atexit = False  # type: ignore[attr-defined]
    return around


def _keyed_weakly(x: Tensor) -> Any:
    key = Plain(None)
    return [key, weakref.WeakKeyDictionary({key: x})]


NEVER_COPIED = (
    "generator", "of a thread", "context variable", "finalizer", "keyed weakly",
)  # fmt: skip
"""What ``copy.deepcopy`` refuses, or copies without what is in it."""

HELD: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "object": (Plain, lambda held: held.value),
    "object in an object": (lambda x: Plain(Plain([x])), lambda held: held.value.value[0]),
    "slots": (Slotted, lambda held: held.value),
    "dataclass": (Frozen, lambda held: held.value),
    "namedtuple": (Named, lambda held: held.value),
    "deque": (lambda x: collections.deque([x]), lambda held: held[0]),
    "set": (lambda x: {x}, lambda held: next(iter(held))),
    "key": (lambda x: {x: 1}, lambda held: next(iter(held))),
    "defaultdict": (lambda x: collections.defaultdict(list, a=[x]), lambda held: held["a"][0]),
    "partial": (lambda x: functools.partial(torch.add, x), lambda held: held.args[0]),
    "closure": (_closure, lambda held: held()),
    "default": (_default, lambda held: held()),
    "bound method": (lambda x: Plain(x).__eq__, lambda held: held.__self__.value),
    "lru_cache": (_cached, lambda held: held()),
    "attribute of a parameter": (_on_a_parameter, lambda held: held.extra.value),
    "sorted": (lambda x: torch.sort(x), lambda held: held.values),
    "maximum": (lambda x: {"found": torch.max(x[None], 1)}, lambda held: held["found"].values),
    "array of objects": (_array, lambda held: held[0, 1]),
    "generator": (_started, next),
    "of a thread": (_of_thread, lambda held: held.value),
    "context variable": (_in_context, lambda held: held.get()),
    "default of a context variable": (_default_of_context, lambda held: held()),
    "finalizer": (_finalizing, lambda held: held.end.peek()[2][0]),
    "keyed weakly": (_keyed_weakly, lambda held: held[1][held[0]]),
    "class of an object": (_of_class, lambda held: held.table["values"][0]),
    "property": (_property, lambda held: held.value),
    "metaclass": (_of_metaclass, lambda held: type(held).tables[0]),
    "class inside of a class": (_of_inner_class, lambda held: held.Constants.table),
    "class": (_method_of_base, lambda held: held.value()),
    "cached method": (_cached_method, lambda held: held.value()),
    "attribute of a tensor": (lambda x: Plain(x * 2), lambda held: held.value),
}


class Holder(nn.Module):
    def __init__(self, hold: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.held = hold(torch.randn(3))


@pytest.mark.parametrize("name", HELD)
def test_what_an_attribute_refers_to_is_real(name: str) -> None:
    hold, read = HELD[name]
    torch.manual_seed(0)
    eager = Holder(hold)
    torch.manual_seed(0)
    module = deferred_init(Holder, hold)
    held = read(module.held)
    materialize_module(module)
    assert read(module.held) is held
    assert torch.equal(read(module.held), read(eager.held))
    assert_no_fakes(module, copies=name not in NEVER_COPIED)


DISTRIBUTIONS: dict[str, Callable[[], Any]] = {
    "Normal": lambda: distributions.Normal(torch.zeros(2), torch.rand(2) + 1),
    "MultivariateNormal": lambda: distributions.MultivariateNormal(torch.rand(2), torch.eye(2) * 3),
    "Categorical": lambda: distributions.Categorical(torch.rand(3) + 0.1),
    "Gamma": lambda: distributions.Gamma(torch.rand(3) + 1, torch.ones(3)),
    "Independent": lambda: distributions.Independent(
        distributions.LogNormal(torch.zeros(2), torch.ones(2)), 1
    ),
    "Mixture": lambda: distributions.MixtureSameFamily(
        distributions.Categorical(torch.ones(3)),
        distributions.Normal(torch.randn(3), torch.ones(3)),
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str) -> None:
    def build(_: Tensor) -> Any:
        return DISTRIBUTIONS[name]()

    torch.manual_seed(0)
    eager = Holder(build)
    torch.manual_seed(0)
    module = materialize_module(deferred_init(Holder, build))
    assert_no_fakes(module)
    torch.manual_seed(1)
    expected = eager.held.sample((4,))
    torch.manual_seed(1)
    drawn = module.held.sample((4,))
    assert torch.equal(drawn, expected)
    assert torch.equal(module.held.log_prob(drawn), eager.held.log_prob(expected))


def assert_no_fakes(module: nn.Module, *, copies: bool = True) -> None:
    """Neither the module nor its deep copy refers to a fake, nor do the classes that they use."""
    for each in (module, copy.deepcopy(module)) if copies else (module,):
        search = Search()
        for submodule in each.modules():
            search.note_class(submodule)
            assert list(search.from_value(vars(submodule))) == []
        assert list(search.from_classes()) == []


def test_hooks_with_tensors_in_their_closures() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            scale = torch.full((2,), 3.0)
            self.register_forward_hook(lambda _module, _inputs, output: output * scale)

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    module = materialize_module(deferred_init(Hooked))
    assert module(torch.ones(2)).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_with_tensors_in_their_closures(register: str) -> None:
    def build() -> nn.Module:
        layer, scale = nn.Linear(2, 2), torch.randn(2)

        def hook(tensor: Any) -> Any:
            if register == "register_hook":
                return tensor * scale
            tensor.grad.mul_(scale)
            return None

        getattr(layer.weight, register)(hook)
        return layer

    gradients = []
    for make in (build, lambda: materialize_module(deferred_init(build))):
        torch.manual_seed(0)
        layer: Any = make()
        layer(torch.ones(1, 2)).sum().backward()
        gradients.append(layer.weight.grad)
    assert not is_fake(gradients[1])
    assert torch.equal(*gradients)


class Hiding(nn.Module):
    """A module with others that are no submodules, as in losses of torchrl."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        inner = nn.Sequential(Holder(Plain))
        inner.__dict__["around"] = self
        self.__dict__["hidden"] = nn.Sequential(self.layer, inner)


def test_modules_that_are_no_submodules() -> None:
    torch.manual_seed(0)
    expected = Hiding()
    torch.manual_seed(0)
    module = deferred_init(Hiding)
    materialize_module(module)
    for found, wanted in ((module, expected), (module.hidden, expected.hidden)):
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(found.state_dict()[name], tensor), name
    assert torch.equal(module.hidden[1][0].held.value, expected.hidden[1][0].held.value)
    assert_no_fakes(module)


def test_a_module_around_this_one_is_left_alone() -> None:
    outer = deferred_init(lambda: nn.Sequential(nn.Linear(2, 2), Holder(Plain)))
    outer[0].around = [outer]
    materialize_module(outer[0])
    assert not is_fake(outer[0])
    assert is_fake(outer[1])


def test_of_unchosen_modules_nothing_is_materialized() -> None:
    module = deferred_init(lambda: nn.Sequential(Holder(Plain), Holder(Plain)))
    materialize_module(module, check_fn=lambda m: m is not module[0])
    assert is_fake(module[0].held.value)
    assert not is_fake(module[1].held.value)


def _on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(2, 2)


@pytest.mark.parametrize("build", [_on_meta, lambda: nn.Sequential(nn.Linear(2, 2), _on_meta())])
def test_a_plain_meta_module_is_refused_with_the_way_out(build: Any, tmp_path: Any) -> None:
    module = build()
    with pytest.raises(NotDeferredError, match=r"weight is a plain meta tensor.*deferred_init"):
        materialize_module(module)
    with pytest.raises(NotDeferredError, match=r"weight is a plain meta tensor.*to_empty"):
        save_materialized(module, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    materialize_module(module.to_empty(device="cpu"))
