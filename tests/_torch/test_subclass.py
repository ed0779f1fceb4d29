"""Wrappers, overrides, and the identity of tensors and storages."""

from __future__ import annotations

import pickle
import subprocess
import sys
import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchfake import FakeTensor, fake_like, fake_mode
from torchfake._core import devices
from torchfake._torch import dispatch_keys, subclass


def test_disabled_overrides() -> None:
    class Plain(torch.Tensor):
        __torch_function__ = subclass.disabled_torch_function

    plain = torch.ones(2).as_subclass(Plain)
    assert type(plain + 1) is torch.Tensor
    assert torch.nn.Parameter.__torch_function__ is subclass.disabled_torch_function
    assert torch.Tensor.__torch_dispatch__ is subclass.disabled_torch_dispatch
    assert torch.nn.Parameter.__torch_dispatch__ is subclass.disabled_torch_dispatch


def test_no_subclass_functions() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: object, **kwargs: object) -> str:
            return "loud"

    loud = torch.ones(2).as_subclass(Loud)
    assert torch.neg(loud) == "loud"
    with subclass.no_subclass_functions():
        assert isinstance(torch.neg(loud), torch.Tensor)


def test_no_torch_functions() -> None:
    """Neither arguments nor modes see the call; with subclasses alone turned off, a mode does."""

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: object, **kwargs: object) -> str:
            return "loud"

    class Deaf(TorchFunctionMode):
        def __torch_function__(self, *args: object, **kwargs: object) -> str:
            return "deaf"

    loud = torch.ones(2).as_subclass(Loud)
    assert not subclass.is_function_mode_on()
    with Deaf():
        assert subclass.is_function_mode_on()
        with subclass.no_subclass_functions():
            assert torch.neg(loud) == "deaf"
        with subclass.no_torch_functions():
            assert isinstance(torch.neg(loud), torch.Tensor)
        assert torch.neg(loud) == "deaf"
    assert torch.neg(loud) == "loud"


def test_builtin_methods() -> None:
    assert subclass.builtin_methods in torch.Tensor.__mro__
    real = torch.ones(2, 3)
    assert subclass.builtin_methods.data.__get__(real).shape == (2, 3)
    assert subclass.builtin_methods.to(real, torch.float64).dtype == torch.float64


def test_make_wrapper() -> None:
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *args: object, **kwargs: object) -> None: ...

    wrapper = subclass.make_wrapper(
        Wrapper, (2, 3), (1, 2), 4, None, torch.int32, torch.strided, torch.device("meta", 11),
        _extra_dispatch_keys=dispatch_keys.WRAPPER_KEY.keys,
    )  # fmt: skip
    assert (wrapper.shape, wrapper.stride(), wrapper.storage_offset()) == ((2, 3), (1, 2), 4)
    assert wrapper.dtype == torch.int32
    assert wrapper.device == torch.device("meta", 11)  # the index survives: see _core/devices
    place = ((2, 3), (1, 2), 4, None, torch.int32, torch.strided, torch.device("meta", 11))
    defaults = subclass.wrapper_defaults(dispatch_keys.WRAPPER_KEY.keys)
    floats = (*place[:4], torch.float32, *place[5:])
    assert torch._C._dispatch_keys(wrapper) == torch._C._dispatch_keys(
        subclass.make_wrapper(Wrapper, *place, *defaults)
    )
    keys = torch._C._dispatch_keys(wrapper)
    assert keys.has(torch._C._parse_dispatch_key("DeferredInit"))
    leaf = subclass.make_wrapper(Wrapper, *subclass.with_requires_grad((*floats, *defaults)))
    assert leaf.requires_grad
    assert leaf.is_leaf


def test_cpp_factories_name_the_carrier_device() -> None:
    """A factory that C++ calls with the options of a fake names its carrier device."""
    fake = fake_like(torch.ones(2), device="cuda:3")
    assert torch.Tensor.device.__get__(fake) == devices.carrier(torch.device("cuda", 3))
    assert fake.new_empty(1).device == torch.device("cuda", 3)


def test_conj_and_neg_bits() -> None:
    tensor = torch.tensor([1 + 2j])
    subclass.set_conj_and_neg(tensor, conj=True, neg=True)
    assert tensor.is_conj()
    assert tensor.is_neg()
    assert tensor.tolist() == [-1 + 2j]


def test_set_data() -> None:
    tensor, source = torch.ones(2), torch.zeros(3, 4)
    subclass.set_data(tensor, source)
    assert tensor.shape == (3, 4)
    assert tensor.data_ptr() == source.data_ptr()


def test_storage_key() -> None:
    tensor, other = torch.ones(3), torch.ones(3)
    key = subclass.storage_key(tensor.untyped_storage())
    assert key == subclass.storage_key(tensor[1:].untyped_storage())
    assert key != subclass.storage_key(other.untyped_storage())


def test_make_subclass() -> None:
    """The constructor of the class does not run."""

    class Own(torch.nn.Parameter):
        def __new__(cls) -> Own:  # type: ignore[misc]
            raise AssertionError("not run")

    made = subclass.make_subclass(Own, torch.ones(2))
    assert type(made) is Own
    assert made.tolist() == [1, 1]


def test_move_hooks() -> None:
    """Moved hooks run for the other tensor, and their handles remove them there."""
    source, target = (torch.ones(2, requires_grad=True) for _ in range(2))
    handle = source.register_hook(lambda grad: grad * 10)
    subclass.move_hooks(source, target)
    target.sum().backward()
    assert target.grad is not None
    assert target.grad.tolist() == [10, 10]
    handle.remove()
    target.grad = None
    target.sum().backward()
    assert target.grad.tolist() == [1, 1]


def test_swap_tensors() -> None:
    """Weak references refer to the object, and a view keeps the C++ tensor of its base."""
    real, fake = torch.nn.Parameter(torch.ones(2)), fake_like(torch.zeros(3))
    reference, view = weakref.ref(fake), fake.view(-1)
    subclass.swap_tensors(fake, real)
    assert type(fake) is torch.nn.Parameter
    assert fake.tolist() == [1, 1]
    assert reference() is fake
    assert isinstance(real, FakeTensor)
    assert view.shape == (3,)


def test_inner_tensors() -> None:
    """Plain tensors and fakes have none; a traceable wrapper has those that it lists."""
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.ones(2), torch.zeros(2)
    assert subclass.inner_tensors(a) == []
    assert subclass.inner_tensors(fake_like(a)) == []
    first, second = subclass.inner_tensors(TwoTensor(a, b))
    assert first is a
    assert second is b


def test_nested_wrappers_are_opened_and_made_anew() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    a, b, c = torch.ones(2), torch.zeros(2), torch.zeros(2)
    wrapper = TwoTensor(TwoTensor(a, b), c)
    names = [name for name, _ in subclass.named_leaves("w", wrapper)]
    assert names == ["w.a.a", "w.a.b", "w.b"]
    assert [id(leaf) for leaf in subclass.leaf_tensors(wrapper)] == [id(a), id(b), id(c)]
    assert subclass.leaf_tensors(a) == [a]
    other = subclass.rewrapped(wrapper, lambda inner: inner.double())
    assert [leaf.dtype for leaf in subclass.leaf_tensors(other)] == [torch.float64] * 3


def test_without_transforms() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(subclass.without_transforms(x))
        return x.sum()

    x = torch.ones(3)
    torch.func.grad(torch.func.grad(lambda t: torch.func.functionalize(function)(t)))(x[0])
    assert all(type(t) is torch.Tensor and not subclass_wrapped(t) for t in seen)
    assert seen


def subclass_wrapped(tensor: torch.Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def test_make_fx_traces_fakes_that_are_no_inputs() -> None:
    class Other(FakeTensor):
        """A class of fakes of its own."""

    owner, name, replace = subclass.traced_by_make_fx(lambda cls: cls is Other)
    assert owner is torch.fx.experimental.proxy_tensor
    assert Other in replace(())
    assert torch.Tensor not in replace(())
    assert torch.Tensor in replace(getattr(owner, name))
    with fake_mode():
        weight, x = torch.ones(3), torch.ones(3)
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda t: t * weight)(x)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.mul.Tensor]


def test_make_fx_knows_of_fakes_as_long_as_there_are_some() -> None:
    """Importing torchfake changes nothing in torch."""
    program = f"""
import pickle, torch
from torch.fx.experimental import proxy_tensor
known = proxy_tensor.HANDLED_TYPES
from torchfake import FakeTensor, fake_like, fake_mode
assert proxy_tensor.HANDLED_TYPES is known
pickled = {pickle.dumps(fake_like(torch.ones(2)))!r}
for make in [
    lambda: fake_mode().__enter__(),
    lambda: fake_like(torch.ones(2)),
    lambda: pickle.loads(pickled),
] * 2:
    made = make()
    assert FakeTensor in proxy_tensor.HANDLED_TYPES
    del made  # a mode too ends with its object
    assert proxy_tensor.HANDLED_TYPES is known
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_data_of_an_inference_tensor_is_set_on_a_wrapper() -> None:
    with fake_mode():
        wrapper = torch.zeros(2)
        with torch.inference_mode():
            source = torch.zeros(3)
    subclass.set_data_of_other_kind(wrapper, source)
    with subclass.no_subclass_functions():
        assert wrapper.shape == (3,)


def test_a_wrapper_is_made_that_requires_grad_inside_of_a_transform() -> None:
    with fake_mode():
        weight, x = torch.nn.Parameter(torch.ones(3)), torch.ones(2, 3)
        made: list[torch.nn.Parameter] = []
        torch.vmap(lambda row: made.append(torch.nn.Parameter(weight)) or row)(x)
    assert made[0].requires_grad
    assert made[0].is_leaf


def test_all_attributes() -> None:
    fake: Any = fake_like(torch.ones(2))
    fake.tag = 1
    every = subclass.all_attributes(fake)
    assert set(every) == {"_fake_meta", "_fake_storage", "tag"}
    assert vars(fake) == {"tag": 1}
    subclass.set_all_attributes(fake, {**every, "tag": 2})
    assert fake.tag == 2
    subclass.every_attribute.__set__(fake, {**every, "tag": 3})
    assert fake.tag == 3
    assert fake._fake_attributes is subclass.all_attributes(fake)
    assert fake.shape == (2,)
    assert subclass.dict_property(frozenset()).fget(fake).keys() == every.keys()
    assert isinstance(vars(fake), subclass.ShownAttributes)


def test_the_dict_of_a_new_fake_is_small() -> None:
    """Python would make one with room for the 30 attributes that instances may share."""
    fake: Any = fake_like(torch.ones(2))
    with fake_mode():
        made: list[Any] = [torch.empty(2) for _ in range(20)]  # by each way there is
        made += [torch.nn.Parameter(each) for each in made]
    plain = {"_fake_meta": None, "_fake_storage": None}
    sizes = {sys.getsizeof(subclass.all_attributes(each)) for each in (fake, *made)}
    assert sizes == {sys.getsizeof(plain)}


def test_swap_tensors_of_torch_exchanges_dicts_in_code_that_we_know() -> None:
    seen = []

    class Watched(torch.Tensor):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            seen.append(sys._getframe(1).f_code)
            return subclass.all_attributes(self)

        @__dict__.setter
        def __dict__(self, new: Any) -> None:
            seen.append(sys._getframe(1).f_code)
            subclass.set_all_attributes(self, new)

    one, other = (torch.ones(n).as_subclass(Watched) for n in (1, 2))
    seen.clear()
    torch.utils.swap_tensors(one, other)
    assert len(seen) >= 4
    assert set(seen) <= subclass._swaps_attributes


def test_hooks_of_a_tensor() -> None:
    tensor = torch.ones(2, requires_grad=True)
    assert subclass.hooks_of(tensor) == []
    first = tensor.register_hook(print)
    second = tensor.register_post_accumulate_grad_hook(print)
    held = subclass.hooks_of(tensor)
    assert [list(hooks.values()) for hooks in held] == [[print], [print]]
    assert [list(hooks) for hooks in held] == [[first.id], [second.id]]


def test_require_grad() -> None:
    assert subclass.require_grad(torch.ones(1), True).requires_grad
    made = torch.ones(1)
    torch.func.grad(lambda x: (subclass.require_grad(made, False), x)[1])(torch.ones(()))
    assert not made.requires_grad
