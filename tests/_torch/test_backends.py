"""Devices, default dtype, default generators, modules of C++ functions."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake._torch import backends, dispatcher, numerics


def test_modules_of_cpp_functions() -> None:
    groups = backends.bindings._group_tensors_by_device_and_dtype([[torch.ones(1)]], False)
    assert [len(columns[0]) for columns, _ in groups.values()] == [1]
    assert backends.nn_functions._parse_to(torch.float16)[1] == torch.float16
    assert backends.cudnn_functions.is_acceptable(torch.ones(1)) is False


def test_device_contexts() -> None:
    constructors = backends.device_constructors()
    assert {torch.empty, torch.ones, torch.arange, torch.tensor, torch.as_tensor} <= constructors
    assert backends.context_device() is None
    with torch.device("meta"):
        assert backends.context_device() == torch.device("meta")


def test_a_context_looks_for_factories_where_they_are_replaced() -> None:
    context = backends.device_contexts.DeviceContext
    assert "_device_constructors" in context.__torch_function__.__code__.co_names
    assert callable(vars(backends.device_contexts)["_device_constructors"])


def test_data_on_meta() -> None:
    """What the probe tells is what a mode sees of a tensor on the device of a fake's wrapper."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.extend(arg.device.type for arg in args)
            return func(*args, **(kwargs or {}))

    was_set = dispatcher.only_lift_cpu()
    dispatcher.set_only_lift_cpu(True)
    try:
        with Watch():
            torch.tensor([1], device="meta:1")
    finally:
        dispatcher.set_only_lift_cpu(was_set)
    assert seen[0] == ("meta" if backends.drops_data_on_meta() else "cpu")


def test_devices_that_are_not_there() -> None:
    """The error is torch's own."""
    cuda = torch.device("cuda")
    if torch.cuda.is_available():
        assert backends.num_real_devices(cuda) == torch.cuda.device_count()
    else:
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            backends.num_real_devices(cuda)
    assert backends.num_real_devices(torch.device("cpu")) == torch.cpu.device_count()
    assert backends.has_device_type("cpu")
    assert not backends.has_device_type("hpu")


def test_the_accelerator_of_a_build() -> None:
    assert backends.own_accelerator_type() == ("cuda" if torch.backends.cuda.is_built() else None)
    name = backends.name_of_privateuse1()
    assert torch.device(f"{name}:0").type == name


def test_lists_of_functions_are_cached() -> None:
    caches = backends.caches_of_functions()
    for function in caches:
        function.cache_clear()
    torch.overrides.is_tensor_method_or_property(torch.Tensor.add)
    assert any(function.cache_info().currsize for function in caches)


def test_default_dtype() -> None:
    """The previous default is restored."""
    with backends.default_dtype(torch.float64):
        assert torch.ones(1).dtype == torch.float64
    assert torch.ones(1).dtype == torch.float32


def test_default_generator_of() -> None:
    """On the CPU, the generator that torch.manual_seed seeds."""
    assert backends.default_generator_of(torch.device("cpu")) is torch.default_generator


def test_canonical_generator() -> None:
    """Dispatch makes a new Python object for the generator among the arguments."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(kwargs["generator"])
            return func(*args, **kwargs)

    other = torch.Generator()
    with Watch():
        torch.rand(2, generator=torch.default_generator)
        torch.rand(2, generator=other)
    assert backends.canonical_generator(seen[0]) is torch.default_generator
    assert backends.canonical_generator(seen[1]) is seen[1]


def test_generator_address() -> None:
    first, second = torch.Generator(), torch.Generator()
    assert backends.generator_address(first) == backends.generator_address(first)
    assert backends.generator_address(first) != backends.generator_address(second)


def test_has_onednn_lstm() -> None:
    assert backends.has_onednn_lstm(torch.float32)
    assert not backends.has_onednn_lstm(torch.float64)
    assert isinstance(backends.has_onednn_lstm(torch.bfloat16), bool)
    assert not backends.has_onednn_lstm(torch.float16)  # while gradients are recorded
    sequence, state, projected = torch.ones(2, 3, 4), torch.ones(1, 3, 5), torch.ones(1, 3, 2)
    assert numerics.takes_onednn_lstm(sequence, (state, state))
    assert not numerics.takes_onednn_lstm(sequence, (projected, state))
    assert not numerics.takes_onednn_lstm(sequence[:, :0], (state, state))


def test_deterministic_options() -> None:
    """The previous options are restored."""
    assert backends.deterministic_options() is None
    assert not backends.fills_empty_memory()
    options: list[backends.Deterministic] = [(True, True), (True, False), (False, True)]
    for warns, fills in options:
        with backends.deterministic((warns, fills)):
            assert backends.deterministic_options() == (warns, fills)
            assert backends.is_deterministic()
            assert torch.is_deterministic_algorithms_warn_only_enabled() is warns
            assert backends.fills_empty_memory() is fills
            assert bool(torch.empty(1).isnan()) or not fills
            with backends.deterministic(None):
                assert not torch.are_deterministic_algorithms_enabled()
    assert backends.deterministic_options() is None
    torch.utils.deterministic.fill_uninitialized_memory = True


def test_the_default_generator_is_kept() -> None:
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    with backends.default_generator_kept() as generator:
        assert generator is torch.default_generator
        torch.rand(3)
        assert not torch.equal(torch.get_rng_state(), expected)
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # imports of torch.func
def test_function_transforms_wrap_by_name() -> None:
    """A mode replaces the function in this module, which looks it up at each call."""
    wrapped = []
    original = backends.function_transforms._wrap_for_grad

    def replacement(tensor: torch.Tensor, level: int) -> torch.Tensor:
        wrapped.append(tensor)
        return original(tensor, level)

    backends.function_transforms._wrap_for_grad = replacement
    try:
        torch.func.jvp(torch.func.grad(torch.sin), (torch.ones(()),), (torch.ones(()),))
    finally:
        backends.function_transforms._wrap_for_grad = original
    assert len(wrapped) == 1


def test_classes_that_are_updated_together() -> None:
    for functions in (backends.optimizer_functions, backends.foreach_functions):
        assert torch.Tensor in vars(functions)[backends.FOREACH_TYPES]


def test_another_seeding_with_the_same_seed_is_seen() -> None:
    torch.manual_seed(3)
    first = backends.last_seeding()
    assert first[0] == 3
    assert backends.last_seeding() == first
    torch.manual_seed(3)
    assert torch.cuda.is_initialized() or backends.last_seeding() != first


def test_the_function_that_makes_gradients() -> None:
    assert callable(getattr(torch.autograd, backends.MAKE_GRADS))


def test_how_the_gradient_of_clamp_by_tensors_is_chosen() -> None:
    x = torch.rand(2, 6, 1, 1).to(memory_format=torch.channels_last)[:, ::2]
    x, bound = x.requires_grad_(), torch.zeros(2, 3, 1, 1).to(memory_format=torch.channels_last)
    lies = torch.autograd.grad(x.clamp(bound, bound + 1).sum(), x)[0].stride()
    assert (lies == (3, 1, 3, 3)) is backends.CLAMP_COMPARES_IN_PLACE
