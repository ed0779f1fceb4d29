"""Every private torch API this project leans on, one function each.

Enters: plain arguments. Leaves: what torch answers. Invariant: no other file in src names an
underscored torch attribute outside its own subclass, and tests/test_private.py calls each
function here, so a torch that changed fails there first. Checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
import torch.distributions

disabled_torch_function = torch._C._disabled_torch_function_impl
"""What ``Tensor`` subclasses carry to say that they do not override torch functions."""

disabled_torch_dispatch = torch._C._disabled_torch_dispatch_impl
"""The same for dispatch: plain tensors and parameters carry it, DTensor and the like do not."""

no_subclass_functions = torch._C.DisableTorchFunctionSubclass
"""Context: torch functions do not look for overrides on their arguments."""

any_autocast = torch._C._is_any_autocast_enabled
"""True while autocast is on for any device type on this thread."""

builtin_methods = torch._C.TensorBase
"""The C base class whose attributes FakeTensor narrows."""

make_wrapper = torch.Tensor._make_wrapper_subclass
"""``(cls, size, strides, offset, memory_format, dtype, layout, device)``: a tensor of class `cls`
with metadata and no data. Documented only in torch's own subclasses (DTensor, FakeTensor)."""


def wrapper_defaults(extra_dispatch_keys: Any) -> tuple[Any, ...]:
    """The arguments of :data:`make_wrapper` after the device, by position: pinned, requires_grad,
    sizes policy, dispatch device, dispatch layout, extra dispatch keys.
    """
    return (False, False, None, False, False, extra_dispatch_keys)


class SpareKey:
    """A dispatch key that torch names and nobody's tensors carry: kernels for it are ours alone.

    Operators without a kernel fall through, at no cost.
    """

    def __init__(self, name: str) -> None:
        key: Any = torch._C._parse_dispatch_key(name)
        self.key = key
        self.keys = torch._C.DispatchKeySet(key)
        self._name = name
        self._below = torch._C._dispatch_keyset_full_after(key)
        self._libraries: list[torch.library.Library] = []  # registrations live as long as these

    def register(self, op: Any, kernel: Callable[..., Any]) -> None:
        """Run `kernel(below, *args, **kwargs)` for `op`; ``below(...)`` is what would have run."""

        def with_keyset(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            def below(*args: Any, **kwargs: Any) -> Any:
                return op.redispatch(keyset & self._below, *args, **kwargs)

            return kernel(below, *args, **kwargs)

        if not self._libraries:
            others = torch.library.Library("_", "IMPL", self._name)
            others.fallback(torch.library.fallthrough_kernel, self._name)
            self._libraries += [others, torch.library.Library("aten", "IMPL", self._name)]
        self._libraries[1].impl(op, with_keyset, with_keyset=True)

    def included(self) -> Any:
        """Context: the key takes part on this thread, whatever the tensors carry."""
        return torch._C._IncludeDispatchKeyGuard(self.key)

    def excluded(self) -> Any:
        """Context: the key takes no part on this thread."""
        return torch._C._ExcludeDispatchKeyGuard(self.keys)


OWN_KEY = SpareKey("DeferredInit")
"""Above autograd and all composites; our wrappers carry it. torch reserves it for torchdistx, the
dead project whose place this one takes."""

AUTOCAST_KEY = SpareKey("AutocastIPU")
"""Where C++ autocast sits, for a backend that was never in torch itself and is no longer made."""

AUTOCAST_KEY_DEVICE_TYPE = "ipu"
"""The device type whose autocast switch lets that key's kernels run."""


_PYTHON_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)


@contextmanager
def nobody_watching() -> Iterator[None]:
    """Context: operators on real tensors are seen by no mode of either kind, nor by autocast."""
    below = torch._C._ExcludeDispatchKeyGuard(_PYTHON_KEYS)
    with torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), below:
        yield


def autocast_operators(device_type: str) -> list[str]:
    """The names of torch's own operators that the installed torch autocasts on `device_type`."""
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}[device_type]
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return [name for name in names if name.startswith("aten::")]


bindings = torch._C
nn_functions = torch._C._nn
cudnn_functions: Any = vars(torch.backends.cudnn)["m"]  # torch shows it through a module of flags
"""Modules of functions: _patch_devices replaces a function of each while a mode is on."""

FAKE_SLOT = torch._C._TorchDispatchModeKey.FAKE


def swap_fake_mode(mode: Any) -> Any:
    """Put `mode` (or None) into this thread's FAKE slot; return what was there.

    The slot is what makes C++ skip CUDA's lazy initialisation when a factory names ``cuda``; it
    also keeps user modes (FlopCounterMode) above ours, wherever they were entered.
    """
    previous = torch._C._unset_dispatch_mode(FAKE_SLOT)
    if mode is not None:
        torch._C._set_dispatch_mode(mode)
    return previous


def current_fake_mode() -> Any:
    """What holds this thread's FAKE slot, or None."""
    return torch._C._get_dispatch_mode(FAKE_SLOT)


def swap_only_lift_cpu(value: bool) -> bool:
    """Whether ``torch.tensor(data, device=...)`` moves its data by a dispatched op; thread-local.

    Without it the copy to ``cuda`` happens inside C++, where no mode can see it.
    """
    previous: bool = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(value)
    return previous


def set_bits(tensor: torch.Tensor, conj: bool, neg: bool) -> None:
    """Mark `tensor` as a lazy conjugate or negative view."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)


def set_data(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """``tensor.data = source`` without looking at Python overrides."""
    builtin_methods.data.__set__(tensor, source)  # type: ignore[attr-defined]


def device_constructors() -> set[Any]:
    """The factories that ``torch.device`` as a context gives its device to.

    torch keeps the set from its first use on, so it must be asked before any is replaced.
    """
    from torch.utils._device import _device_constructors

    return set(_device_constructors())


def context_device() -> torch.device | None:
    """The device of the ``with torch.device(...)`` (or default device) around, if there is one."""
    from torch.overrides import _get_current_function_mode_stack

    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, torch.utils._device.DeviceContext):
            return torch.device(mode.device)
    return None


def raise_no_cuda() -> None:
    """Raise what torch raises when CUDA is asked for and is not there."""
    torch.cuda._lazy_init()


def storage_key(storage: torch.UntypedStorage) -> int:
    """The address of the C++ storage: two tensors alias if and only if theirs are equal."""
    return int(storage._cdata)


def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Torch's Python decomposition of an operator, where it has one."""
    from torch._decomp import decomposition_table  # slow to import, so only when it is needed

    return decomposition_table.get(func)


def without_override_check(function: types.FunctionType) -> types.FunctionType:
    """The same Python function, blind to overrides on its own arguments.

    ``torch.nn.functional`` functions begin with ``if has_torch_function(...)``. A handler that
    calls one again must get past that check, and still see the calls made inside.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = function.__globals__
    return _with_globals(function, {**known, **{n: _no_override for n in names if n in known}})


def _with_globals(function: types.FunctionType, names: dict[str, Any]) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _no_override(*_args: object) -> bool:
    return False


@lru_cache(maxsize=1)
def settled_questions() -> dict[int, tuple[types.CodeType, float]]:
    """Functions of torch that ask about values, and the answer for values that do not exist.

    Rejection samplers ask whether any draw is left to redo (``trunc_normal_`` became one in torch
    2.13); argument checks ask whether a value is out of range, or all are in it; the gradient
    scaler asks how many gradients overflowed. Optimizers ask for norms and losses to choose the
    length of a step, and whether they have converged. By the identity of their code, which is
    kept alive: its own hash reads all of its instructions.
    """
    functional, distribution = torch.nn.functional, torch.distributions.Distribution
    parametrizations, lbfgs = torch.nn.utils.parametrizations, _unwrap(torch.optim.LBFGS.step)
    adafactor, line_search = torch.optim._adafactor, lbfgs.__globals__
    answers = {
        getattr(torch.nn.init, "_no_grad_trunc_normal_", None): False,
        functional.gaussian_nll_loss: False,
        distribution.__init__: True,
        distribution._validate_sample: True,
        torch.amp.GradScaler._maybe_opt_step: False,
        parametrizations._is_orthogonal: False,
        torch.nn.modules.transformer._detect_is_causal_mask: False,
        adafactor._single_tensor_adafactor: 1.0,
        adafactor._multi_tensor_adafactor: 1.0,
        lbfgs: False,
        line_search["_strong_wolfe"]: False,
        line_search["_cubic_interpolate"]: False,
    }
    codes = [(function.__code__, answer) for function, answer in answers.items() if function]
    return {id(code): (code, answer) for code, answer in codes}


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    """The format that kernels which keep "the input's" memory format take `tensor` to have."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


@cache
def meta_kernel_of(func: Any, device_type: str) -> Callable[..., Any] | None:
    """Torch's Python meta kernel of an operator as it is for `device_type`, where that matters.

    Some kernels in ``torch._meta_registrations`` lay their results out by ``device_hint(tensor)``,
    which takes a meta tensor to mean CUDA. None for any operator that never asks.
    """
    from torch import _meta_registrations as registrations
    from torch._decomp import meta_table

    if any(argument.is_out for argument in func._schema.arguments):
        return None  # out= is the work of the decorators that are taken off here
    kernel = _unwrap(meta_table.get(func))
    if not isinstance(kernel, types.FunctionType) or kernel.__module__ != registrations.__name__:
        return None
    asking = _asking_for_device(registrations)
    if kernel.__code__ not in asking:
        return None
    names = {**vars(registrations), "device_hint": lambda tensor: device_type}
    for name, value in vars(registrations).items():
        function = _unwrap(value)
        if isinstance(function, types.FunctionType) and function.__code__ in asking:
            names[name] = _with_globals(function, names)
    return _with_globals(kernel, names)


@lru_cache(maxsize=1)
def _asking_for_device(registrations: types.ModuleType) -> frozenset[types.CodeType]:
    """The functions of a module that call ``device_hint``, directly or through each other."""
    unwrapped = {name: _unwrap(value) for name, value in vars(registrations).items()}
    functions = {n: f for n, f in unwrapped.items() if isinstance(f, types.FunctionType)}
    asking = {"device_hint"}
    while True:
        found = {name for name, f in functions.items() if asking & _names_in(f.__code__)}
        if found <= asking:
            return frozenset(functions[name].__code__ for name in found)
        asking |= found


def _unwrap(function: Any) -> Any:
    """The function inside torch's decorators. (inspect.unwrap would ask operators to unwrap.)"""
    while isinstance(function, types.FunctionType) and "__wrapped__" in vars(function):
        function = vars(function)["__wrapped__"]
    return function


def _names_in(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*(_names_in(c) for c in inner))


@contextmanager
def as_eager() -> Iterator[None]:
    """Context: operators on real tensors run as if nobody watched, and record no gradients."""
    with nobody_watching(), torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Context: torch's default dtype, changed only where it is another."""
    before = torch.get_default_dtype()
    if before is not dtype:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        if before is not dtype:
            torch.set_default_dtype(before)


def default_generator_of(device: torch.device) -> torch.Generator:
    """The generator that draws on `device` take if they are given none."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def same_object(generator: torch.Generator) -> torch.Generator:
    """The default generator for any of the Python objects that stand for it: dispatch makes new
    ones.
    """
    known, given = torch.default_generator, generator
    is_default = given is known or known._cdata == given._cdata  # type: ignore[attr-defined]
    return known if is_default else given


@lru_cache(maxsize=1)
def init_steps() -> dict[int, Callable[..., Any]]:
    """The initialisers of ``torch.nn.init`` that read values, or draw and compute at length, by the
    identity of their code. Their first argument is called ``tensor``, and all of it is written.
    """
    init = torch.nn.init
    functions: list[Any] = [init.orthogonal_, init.sparse_]
    for name in ("_no_grad_trunc_normal_", "trunc_normal_"):
        function = getattr(init, name, None)
        if function is not None and "any" in function.__code__.co_names:  # a rejection sampler
            functions.append(function)
    return {id(function.__code__): function for function in functions}


def is_in_a_graph(leaf: torch.Tensor) -> bool:
    """Whether a gradient would be accumulated into `leaf` by a graph that is alive."""
    if not leaf.requires_grad or leaf.is_inference() or leaf._is_view():
        return False  # of a view made in no_grad: it is in none
    holder: Any = leaf
    # Below the subclass: torch would ask whether it is a DTensor, and import half a second for it.
    below: Any = torch._C._DisableTorchDispatch()
    with below, torch.inference_mode(False), torch.enable_grad():
        before = holder._use_count()
        view: Any = leaf.view_as(leaf)
        node = view.grad_fn.next_functions[0][0]  # counted, if made just now
        del view
        return bool(node is not None and holder._use_count() == before)


def move_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Give the hooks of a tensor to another, with their handles."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(source, name)
        if hooks is not None:
            setattr(target, name, hooks)


def make_subclass(cls: Any, data: torch.Tensor) -> torch.Tensor:
    """A tensor of class `cls` on the memory of `data`, without running its constructor."""
    made: torch.Tensor = torch.Tensor._make_subclass(cls, data)
    return made


def swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two tensor objects are.

    ``torch.utils.swap_tensors`` refuses tensors with weak references (an LSTM has them to its
    weights) and bases of views. Weak references are to the objects, which stay; and a view goes on
    to hold what its base was. So only a graph that is alive stands in the way: see `is_in_a_graph`.
    """
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def is_taken_apart(func: Any) -> bool:
    """Whether C++ takes an operator apart, as a rule, before it is dispatched to Python. In
    inference mode it does not, and ``to`` or ``reshape`` arrive whole, which are views or copies.
    """
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def tensors_inside(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a wrapper of another class holds: a DTensor its shard. Nothing, of a plain tensor."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return []
    if not torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        return []
    names, _ = tensor.__tensor_flatten__()
    return [getattr(tensor, name) for name in names]


def next_node_number() -> int:
    """The number that the next node of autograd's graph made on this thread will have."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


LEAF_NODES = 1 << 63
"""From here on are the numbers of nodes that add up the gradients of leaves."""


def running_node_number() -> int | None:
    """The number of the node that a backward pass is running on this thread, if one is."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())
