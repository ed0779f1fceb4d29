"""Each private torch API that src leans on, called once: a torch that changed fails here first."""

from __future__ import annotations

import ast
import inspect
import types
import weakref
from pathlib import Path

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists

from torchfake import FakeTensor, _device, _private, fake_like, fake_mode
from torchfake._dispatch import FakeDispatch

aten = torch.ops.aten
SOURCE = Path(inspect.getfile(_private)).parent


def test_every_name_is_called_here() -> None:
    """A new name of _private.py joins this file."""
    own = {
        name
        for name, value in vars(_private).items()
        if not name.startswith("__")
        and not (isinstance(value, types.ModuleType) and name in ("torch", "types"))
        and name
        not in (
            "annotations",
            "Any",
            "Callable",
            "Iterator",
            "contextmanager",
            "lru_cache",
            "cache",
        )
    }
    tree = ast.parse(Path(__file__).read_text())
    called = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    helpers = {name for name in own if name.startswith("_")}
    assert own - helpers <= called, own - helpers - called


def test_disabled_overrides() -> None:
    class Plain(torch.Tensor):
        __torch_function__ = _private.disabled_torch_function

    plain = torch.ones(2).as_subclass(Plain)
    assert type(plain + 1) is torch.Tensor
    assert torch.nn.Parameter.__torch_function__ is _private.disabled_torch_function
    assert torch.Tensor.__torch_dispatch__ is _private.disabled_torch_dispatch
    assert torch.nn.Parameter.__torch_dispatch__ is _private.disabled_torch_dispatch


def test_no_subclass_functions() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: object, **kwargs: object) -> str:
            return "loud"

    loud = torch.ones(2).as_subclass(Loud)
    assert torch.neg(loud) == "loud"
    with _private.no_subclass_functions():
        assert isinstance(torch.neg(loud), torch.Tensor)


def test_any_autocast() -> None:
    assert not _private.any_autocast()
    with torch.autocast("cpu"):
        assert _private.any_autocast()
    with torch.autocast("cpu", enabled=False):
        assert not _private.any_autocast()


def test_nobody_watching() -> None:
    with fake_mode(), torch.device("meta"), torch.autocast("cpu"), _private.nobody_watching():
        made = torch.ones(2, 2) @ torch.ones(2, 2)
    assert made.tolist() == [[2.0, 2.0]] * 2
    assert made.dtype == torch.float32


def test_builtin_methods() -> None:
    assert _private.builtin_methods in torch.Tensor.__mro__
    real = torch.ones(2, 3)
    assert _private.builtin_methods.data.__get__(real).shape == (2, 3)
    assert _private.builtin_methods.to(real, torch.float64).dtype == torch.float64


def test_make_wrapper() -> None:
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *args: object, **kwargs: object) -> None: ...

    wrapper = _private.make_wrapper(
        Wrapper, (2, 3), (1, 2), 4, None, torch.int32, torch.strided, torch.device("meta", 11),
        _extra_dispatch_keys=_private.OWN_KEY.keys,
    )  # fmt: skip
    assert (wrapper.shape, wrapper.stride(), wrapper.storage_offset()) == ((2, 3), (1, 2), 4)
    assert wrapper.dtype == torch.int32
    assert wrapper.device == torch.device("meta", 11)  # the index survives, as _device.py needs
    place = ((2, 3), (1, 2), 4, None, torch.int32, torch.strided, torch.device("meta", 11))
    defaults = _private.wrapper_defaults(_private.OWN_KEY.keys)
    assert torch._C._dispatch_keys(wrapper) == torch._C._dispatch_keys(
        _private.make_wrapper(Wrapper, *place, *defaults)
    )
    keys = torch._C._dispatch_keys(wrapper)
    assert keys.has(torch._C._parse_dispatch_key("DeferredInit"))


def test_a_key_runs_kernels_and_lets_others_through() -> None:
    key, seen = _private.OWN_KEY, []
    assert isinstance(key, _private.SpareKey)
    assert key.key != _private.AUTOCAST_KEY.key

    def kernel(below: object, *args: object) -> object:
        seen.append(args)
        return below(*args)  # type: ignore[operator]

    key.register(aten.hypot.default, kernel)
    with key.included():
        result = torch.hypot(torch.tensor(3.0), torch.tensor(4.0))
        assert torch.relu(torch.tensor(-1.0)) == 0
        with key.excluded():
            torch.hypot(torch.tensor(1.0), torch.tensor(1.0))
    assert result == 5
    assert len(seen) == 1
    torch.hypot(torch.tensor(3.0), torch.tensor(4.0))
    assert len(seen) == 1


def test_autocast_key() -> None:
    previous = torch.is_autocast_enabled(_private.AUTOCAST_KEY_DEVICE_TYPE)
    torch.set_autocast_enabled(_private.AUTOCAST_KEY_DEVICE_TYPE, True)
    assert torch.is_autocast_enabled(_private.AUTOCAST_KEY_DEVICE_TYPE)
    torch.set_autocast_enabled(_private.AUTOCAST_KEY_DEVICE_TYPE, previous)
    assert previous is False


def test_autocast_operators() -> None:
    for device_type in ("cpu", "cuda"):
        names = _private.autocast_operators(device_type)
        assert {"aten::linear", "aten::bmm"} <= set(names), device_type
    assert AutocastCPUTestLists is not None


def test_modules_of_functions() -> None:
    groups = _private.bindings._group_tensors_by_device_and_dtype([[torch.ones(1)]], False)
    assert [len(columns[0]) for columns, _ in groups.values()] == [1]
    assert _private.nn_functions._parse_to(torch.float16)[1] == torch.float16
    assert _private.cudnn_functions.is_acceptable(torch.ones(1)) is False


def test_fake_slot() -> None:
    assert _private.current_fake_mode() is None
    mode = FakeDispatch()
    assert mode._mode_key == _private.FAKE_SLOT
    assert _private.swap_fake_mode(mode) is None
    try:
        assert _private.current_fake_mode() is mode
    finally:
        assert _private.swap_fake_mode(None) is mode
    assert _private.current_fake_mode() is None


def test_only_lift_cpu() -> None:
    assert _private.swap_only_lift_cpu(True) is False
    assert _private.swap_only_lift_cpu(False) is True


def test_bits() -> None:
    tensor = torch.tensor([1 + 2j])
    _private.set_bits(tensor, conj=True, neg=True)
    assert tensor.is_conj()
    assert tensor.is_neg()
    assert tensor.tolist() == [-1 + 2j]


def test_set_data() -> None:
    tensor, source = torch.ones(2), torch.zeros(3, 4)
    _private.set_data(tensor, source)
    assert tensor.shape == (3, 4)
    assert tensor.data_ptr() == source.data_ptr()


def test_devices_of_contexts() -> None:
    constructors = _private.device_constructors()
    assert {torch.empty, torch.ones, torch.arange, torch.tensor, torch.as_tensor} <= constructors
    assert _private.context_device() is None
    with torch.device("meta"):
        assert _private.context_device() == torch.device("meta")


def test_raise_no_cuda() -> None:
    if torch.cuda.is_available():
        _private.raise_no_cuda()
        return
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        _private.raise_no_cuda()


def test_storage_key() -> None:
    tensor, other = torch.ones(3), torch.ones(3)
    key = _private.storage_key(tensor.untyped_storage())
    assert key == _private.storage_key(tensor[1:].untyped_storage())
    assert key != _private.storage_key(other.untyped_storage())


def test_decompositions() -> None:
    decomposition = _private.decomposition_of(aten.addcmul.default)
    assert decomposition is not None
    assert decomposition(*torch.ones(3, 2)).tolist() == [2.0, 2.0]
    assert _private.decomposition_of(aten.nonzero.default) is None


def test_without_override_check() -> None:
    function = torch.nn.functional.layer_norm
    blind = _private.without_override_check(function)
    assert blind is not function
    assert blind.__defaults__ == function.__defaults__
    assert not blind.__globals__["has_torch_function_variadic"](1)
    x = torch.arange(4.0)
    assert torch.equal(blind(x, (4,)), function(x, (4,)))


def test_settled_questions() -> None:
    answers = [code for code, _ in _private.settled_questions().values()]
    assert torch.distributions.Distribution.__init__.__code__ in answers
    assert torch.nn.functional.gaussian_nll_loss.__code__ in answers
    assert torch.optim.LBFGS.step.__wrapped__.__code__ in answers or len(answers) > 8
    with fake_mode():  # the rejection sampler of torch 2.13, and what it was before
        assert torch.nn.init.trunc_normal_(torch.empty(3, 3)).shape == (3, 3)


def test_memory_format() -> None:
    image = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)
    assert _private.memory_format_of(image) == torch.channels_last
    assert _private.memory_format_of(torch.empty(2)) == torch.contiguous_format


def test_meta_kernels_that_ask_for_the_device() -> None:
    kernel = _private.meta_kernel_of(aten._linalg_svd.default, "cpu")
    assert kernel is not None
    matrix = torch.empty(3, 2, device="meta")
    assert [tuple(t.shape) for t in kernel(matrix)] == [(3, 2), (2,), (2, 2)]
    assert _private.meta_kernel_of(aten.add.Tensor, "cpu") is None
    assert _private.meta_kernel_of(aten.add.out, "cpu") is None


def test_carriers_survive_options() -> None:
    """A factory in C++ that asks for a fake's device names its carrier."""
    fake = fake_like(torch.ones(2), device="cuda:3")
    assert torch.Tensor.device.__get__(fake) == _device.carrier(torch.device("cuda", 3))
    assert fake.new_empty(1).device == torch.device("cuda", 3)


def test_no_other_file_names_torch_s_private_bindings() -> None:
    allowed = {"_private.py", "_private_distributed.py", "_autocast.py"}
    naming = {
        path.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "_C"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    }
    assert naming <= allowed, naming - allowed


def test_as_eager() -> None:
    """Real tensors are made although a mode is on, and no history is kept."""
    weight = torch.ones(3, requires_grad=True)
    with fake_mode(), torch.inference_mode(), _private.as_eager():
        double = weight * 2
    assert not isinstance(double, FakeTensor)
    assert not double.requires_grad
    assert not double.is_inference()


def test_default_dtype() -> None:
    """Another default dtype, and the one before."""
    with _private.default_dtype(torch.float64):
        assert torch.ones(1).dtype == torch.float64
    assert torch.ones(1).dtype == torch.float32


def test_default_generator_of() -> None:
    """The generator that torch.manual_seed seeds."""
    assert _private.default_generator_of(torch.device("cpu")) is torch.default_generator


def test_same_object() -> None:
    """Dispatch hands over another Python object for the same generator."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(kwargs["generator"])
            return func(*args, **kwargs)

    other = torch.Generator()
    with Watch():
        torch.rand(2, generator=torch.default_generator)
        torch.rand(2, generator=other)
    assert _private.same_object(seen[0]) is torch.default_generator
    assert _private.same_object(seen[1]) is seen[1]


def test_init_steps() -> None:
    """Their first argument is the tensor that they write; torch 2.13 made one a rejection
    sampler."""
    functions = _private.init_steps().values()
    names = {function.__name__ for function in functions}
    assert {"orthogonal_", "sparse_"} <= names
    for function in functions:
        assert next(iter(inspect.signature(function).parameters)) == "tensor"
        assert function.__code__.co_varnames[0] == "tensor"
    draws_again = "any" in torch.nn.init._no_grad_trunc_normal_.__code__.co_names
    assert ("_no_grad_trunc_normal_" in names) == draws_again


def test_swap() -> None:
    """Two objects exchange what they are; weak references go with the object, views stay."""
    real, fake = torch.nn.Parameter(torch.ones(2)), fake_like(torch.zeros(3))
    reference, view = weakref.ref(fake), fake.view(-1)
    _private.swap(fake, real)
    assert type(fake) is torch.nn.Parameter
    assert fake.tolist() == [1, 1]
    assert reference() is fake
    assert isinstance(real, FakeTensor)
    assert view.shape == (3,)


def test_is_in_a_graph() -> None:
    """As long as the graph is there."""
    leaf = torch.nn.Parameter(torch.ones(2))
    assert not _private.is_in_a_graph(leaf)
    result = leaf * 2
    assert _private.is_in_a_graph(leaf)
    del result
    assert not _private.is_in_a_graph(leaf)
    assert not _private.is_in_a_graph(torch.ones(2))


def test_move_hooks() -> None:
    """Hooks act on the other tensor, and their handles remove them there."""
    source, target = (torch.ones(2, requires_grad=True) for _ in range(2))
    handle = source.register_hook(lambda grad: grad * 10)
    _private.move_hooks(source, target)
    target.sum().backward()
    assert target.grad is not None
    assert target.grad.tolist() == [10, 10]
    handle.remove()
    target.grad = None
    target.sum().backward()
    assert target.grad.tolist() == [1, 1]


def test_tensors_inside() -> None:
    """None, but of wrappers that say what they hold."""
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.ones(2), torch.zeros(2)
    assert _private.tensors_inside(a) == []
    assert _private.tensors_inside(fake_like(a)) == []
    first, second = _private.tensors_inside(TwoTensor(a, b))
    assert first is a
    assert second is b


def test_is_taken_apart() -> None:
    """Composites are, kernels are not."""
    assert _private.is_taken_apart(aten.reshape.default)
    assert not _private.is_taken_apart(aten.view.default)


def test_make_subclass() -> None:
    """A parameter of a class with a constructor of its own."""

    class Own(torch.nn.Parameter):
        def __new__(cls) -> Own:  # type: ignore[misc]
            raise AssertionError("not run")

    made = _private.make_subclass(Own, torch.ones(2))
    assert type(made) is Own
    assert made.tolist() == [1, 1]


def test_node_numbers() -> None:
    """Nodes are numbered as they are made, and the one that runs backward is known by its own."""
    x = torch.ones(2, requires_grad=True)
    first = _private.next_node_number()
    y = x * 2
    assert _private.next_node_number() == first + 1
    seen: list[int | None] = []
    y.register_hook(lambda _: seen.append(_private.running_node_number()))
    (y.exp() + y.sin()).sum().backward()
    assert seen == [first]
    assert _private.running_node_number() is None


def test_leaf_nodes() -> None:
    """What adds up the gradient of a leaf is numbered apart."""
    x = torch.ones(2, requires_grad=True)
    seen: list[int | None] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(_private.running_node_number())
            return func(*args, **(kwargs or {}))

    y = x.expand(3, 2)
    with Watch():
        y.sum().backward()
    numbers = [number for number in seen if number is not None]
    assert any(number >= _private.LEAF_NODES for number in numbers)
    assert any(number < _private.LEAF_NODES for number in numbers)
