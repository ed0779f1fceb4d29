"""Devices, default dtype and default generators of torch, and its modules of C++ functions.

Input: devices, dtypes, generators. Output: torch's modules, defaults and generators for the
devices. Invariant: only the context managers here change state.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from functools import cache
from operator import methodcaller
from typing import Any

import torch
import torch.utils._foreach_utils

from torchfake._torch import dispatcher
from torchfake._torch.contexts import Restoring, Setting, Together, holding, shared

bindings = torch._C
nn_functions = torch._C._nn
function_transforms: Any = torch._functorch.eager_transforms  # what torch.func.grad and jvp call
cudnn_functions: Any = vars(torch.backends.cudnn)["m"]  # torch wraps it in a module of flags

optimizer_functions: Any = sys.modules[torch.optim.Optimizer.__module__]
foreach_functions: Any = torch.utils._foreach_utils
FOREACH_TYPES = "_foreach_supported_types"
"""The name, in both modules, of a list: the tensor classes that are updated together by default."""

"""The modules above have functions that _patches replaces while a mode is on."""

device_contexts: Any = importlib.import_module("torch.utils._device")
"""Where ``with torch.device(...)`` looks for the factory functions; torch 2.11 to 2.15."""


def device_constructors() -> set[Any]:
    """The factory functions to which ``torch.device`` as a context manager adds its device.

    torch caches the set at its first use, so call this before any of them is replaced.
    """
    from torch.utils._device import _device_constructors

    return set(_device_constructors())


def context_device() -> torch.device | None:
    """The device of the innermost ``with torch.device(...)``, else the default device, if any."""
    from torch.overrides import _get_current_function_mode_stack

    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, torch.utils._device.DeviceContext):
            return torch.device(mode.device)
    return None


@cache
def drops_data_on_meta() -> bool:
    """Whether ``torch.tensor(data, device="meta:1")`` never reads its data. torch 2.11 and 2.13
    read it, and in a mode that tensor is dispatched on the CPU; torch 2.15 does not. The first call
    has to come before a mode replaces ``torch.tensor``.
    """
    try:
        torch.tensor([None], dtype=torch.int64, device="meta:1")
    except TypeError:
        return False
    return True


_empty, _device = torch.empty, torch.device  # the names may refer to replacements


def name_of_privateuse1() -> str:
    """The name of the backend of an extension: ``privateuseone``, until the user renames it."""
    name: str = torch._C._get_privateuse1_backend_name()
    return name


def own_accelerator_type() -> str | None:
    """The type of accelerator that this torch is built for, which C++ assumes for an ordinal."""
    own = torch._C._accelerator_getAccelerator()
    return None if own is None or own.type == "cpu" else str(own.type)


def num_real_devices(device: torch.device) -> int:
    """How many devices of the type of `device` this machine has.

    Raises:
        Exception: what torch raises when such a device is requested, if there is none.
    """
    if device.type == "cuda":
        if not torch.cuda.is_available():
            torch.cuda._lazy_init()
        return torch.cuda.device_count()
    with dispatcher.in_fake_slot(None), dispatcher.no_interception():
        _empty(0, device=_device(device.type))
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    return 1 if count is None else int(count())


@cache
def has_device_type(device_type: str) -> bool:
    """Whether this machine has devices of a type other than CUDA, whose devices may come later."""
    try:
        return num_real_devices(torch.device(device_type)) > 0
    except RecursionError:
        raise
    except (RuntimeError, AssertionError, NotImplementedError, AttributeError, ImportError):
        return False


def default_dtype(dtype: torch.dtype) -> Setting:
    """Context: `dtype` is torch's default dtype."""
    return Setting(torch.get_default_dtype, torch.set_default_dtype, dtype)


class autocast_off(Restoring):
    """Context: no autocast on devices of a type; settings made inside are undone."""

    _before: tuple[bool, torch.dtype] | None = None

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def change(self) -> None:
        kind = self._device_type
        self._before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        if self._before[0]:
            torch.set_autocast_enabled(kind, False)

    def restore(self) -> None:
        kind = self._device_type
        if self._before is not None:
            torch.set_autocast_dtype(kind, self._before[1])
            if torch.is_autocast_enabled(kind) is not self._before[0]:
                torch.set_autocast_enabled(kind, self._before[0])


def _autocast_nesting() -> int:
    """How many contexts of autocast this thread is in. No interrupt comes between the two calls."""
    calls = torch.autocast_increment_nesting, torch.autocast_decrement_nesting
    depths: list[int] = list(map(methodcaller("__call__"), calls))
    return depths[1]


class autocast(Restoring):
    """Context: ``torch.autocast``, left by restoring the previous settings. torch's own
    ``__exit__`` restores nothing if it is interrupted before it begins.
    """

    _before: tuple[bool, torch.dtype, bool, int] | None = None

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        self._kind, self._dtype = device_type, dtype

    def change(self) -> None:
        kind = self._kind
        is_on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        nesting = _autocast_nesting()
        self._before = is_on, dtype, torch.is_autocast_cache_enabled(), nesting
        torch.autocast(kind, dtype=self._dtype).__enter__()

    def restore(self) -> None:
        if self._before is None:
            return
        is_on, dtype, has_cache, nesting = self._before
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        if not nesting:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(self._kind, is_on)
        torch.set_autocast_dtype(self._kind, dtype)
        torch.set_autocast_cache_enabled(has_cache)


class keeping_state(Restoring):
    """Context: `generator` gets its state back at the end."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._before: torch.Tensor | None = None

    def change(self) -> None:
        self._before = self._generator.get_state()

    def restore(self) -> None:
        if self._before is not None:
            self._generator.set_state(self._before)


def has_onednn_lstm(dtype: torch.dtype) -> bool:
    """Whether this processor has oneDNN's LSTM for inputs of `dtype`: aten/src/ATen/native/RNN.cpp,
    use_mkldnn.
    """
    if dtype == torch.float16:
        supported: bool = torch.ops.mkldnn._is_mkldnn_fp16_supported()
        return supported and not torch.is_grad_enabled()
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


MAKE_GRADS = "_make_grads"  # of torch.autograd: makes backward's gradients, in 2.12 to 2.15


is_deterministic = torch._C._get_deterministic_algorithms
"""Whether ``torch.use_deterministic_algorithms`` is on."""

Deterministic = tuple[bool, bool]
"""The options of ``torch.use_deterministic_algorithms``: whether it only warns, and whether empty
memory is filled."""


def deterministic_options() -> Deterministic | None:
    """The options of ``torch.use_deterministic_algorithms``; None if it is off."""
    if not is_deterministic():
        return None
    warns: bool = torch._C._get_deterministic_algorithms_warn_only()
    return warns, torch._C._get_deterministic_fill_uninitialized_memory()


def fills_empty_memory() -> bool:
    """Whether ``torch.empty`` fills its result with NaN or the largest integer, for determinism."""
    return is_deterministic() and torch._C._get_deterministic_fill_uninitialized_memory()


def deterministic(options: Deterministic | None) -> Setting:
    """Context: ``torch.use_deterministic_algorithms`` is on with `options`, or off."""
    return Setting(deterministic_options, _set_deterministic, options)


def _set_deterministic(options: Deterministic | None) -> None:
    if options is None:
        torch._C._set_deterministic_algorithms(False)
        return
    warns, fills = options
    torch._C._set_deterministic_algorithms(True, warn_only=warns)
    torch._C._set_deterministic_fill_uninitialized_memory(fills)


def default_generator_of(device: torch.device) -> torch.Generator:
    """The default generator of random operators on `device`."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = getattr(torch, device.type, None)
    generators = getattr(module, "default_generators", None)
    return generators[device.index or 0] if generators else torch.default_generator


def last_seeding() -> tuple[int, Any]:
    """The seed of ``torch.default_generator``, and another object after each call of
    ``torch.manual_seed``, even with the same seed: what torch queues for CUDA until that is
    initialized; None once it is. Private: torch 2.12 to 2.15.
    """
    tracker = getattr(torch.cuda, "_lazy_seed_tracker", None)
    return torch.initial_seed(), getattr(tracker, "manual_seed_all_cb", None)


def canonical_generator(generator: torch.Generator) -> torch.Generator:
    """``torch.default_generator`` if `generator` is the same C++ generator, else `generator`.

    Dispatch to Python makes a new Python object for a generator among the arguments.
    """
    default, given = torch.default_generator, generator
    is_default = given is default or generator_address(default) == generator_address(given)
    return default if is_default else given


def generator_address(generator: torch.Generator) -> int:
    """The address of the C++ generator, the same for all Python objects of that generator."""
    address: int = generator._cdata  # type: ignore[attr-defined]
    return address


_default_generator_lock = shared(threading.RLock(), for_whole_calls=True)


class default_generator_kept(Together):
    """Context: the default generator of `device` (None: the CPU) gets its state back at the end.
    Other threads wait before they enter such a context.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._generator = default_generator_of(device or torch.device("cpu"))
        super().__init__(holding(_default_generator_lock), keeping_state(self._generator))

    def change(self) -> torch.Generator:
        super().change()
        return self._generator


_LISTS_OF_FUNCTIONS = (
    "get_ignored_functions",
    "get_default_nowrap_functions",
    "get_testing_overrides",
    "_get_overridable_functions",
    "_get_tensor_methods",
)


def caches_of_functions() -> list[Any]:
    """The cached functions of imported modules in which torch lists its own functions once, or
    remembers whether there is a device.
    """
    found = []
    for function in map(vars(torch.overrides).get, _LISTS_OF_FUNCTIONS):
        if hasattr(function, "cache_clear"):
            found.append(function)
    for name in ("torch.utils._triton", "torch._dynamo.trace_rules"):
        module: Any = sys.modules.get(name)
        if module is not None:
            there = vars(module)
            names = filter(there.__contains__, _names_with_a_cache(module, len(there)))
            found += map(there.__getitem__, names)
    return found


@functools.lru_cache(8)
def _names_with_a_cache(module: Any, num_names: int) -> list[str]:
    """The functions of a module that have a cache; searched anew if `num_names` has changed."""
    return [name for name, value in vars(module).items() if hasattr(value, "cache_clear")]


CLAMP_COMPARES_IN_PLACE = torch.__version__ < "2.14"
"""Whether the gradient of ``clamp`` by tensors is chosen by a comparison into which another one is
written: in 2.13, not in 2.15."""
