"""What is traced instead of what the user has.

Enters: a module or function, and inputs. Leaves: twins of them, for each of the tracers, and the
modes they are traced in. Invariant: whatever is done to a twin, the module does not see it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake import _function, _private, _state
from torchfake._fx_proxies import Foreign
from torchfake._fx_values import TorchFakes
from torchfake._tensor import FakeTensor, is_deferred_fake
from torchfake.deferred import deferred_mode
from torchfake.errors import TraceError
from torchfake.fake import Twins, all_tensors, fake_like, fake_mode


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """Those of modules, registered or not, and of trees of inputs."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(trees):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, nn.Module):
            found += all_tensors(leaf, set())
    return found


# Modes.


def _num_cuda(tensors: list[torch.Tensor]) -> int:
    state = _state.current()
    machine = 0 if state is None or state.cuda is None else state.cuda.num_devices
    indices = [tensor.get_device() for tensor in tensors if tensor.is_cuda]
    return max([machine, *(index + 1 for index in indices)])


@contextlib.contextmanager
def faking(tensors: list[torch.Tensor]) -> Iterator[None]:
    """A mode in which all that is made is fake, and none of it recorded; the one that is on, if
    it is such.
    """
    import torch._dynamo  # noqa: F401  # make_fx would, and learn the functions that replace torch's

    num_cuda = _num_cuda(tensors)
    is_on = _state.current() is not None and not _state.is_recording()
    with contextlib.nullcontext() if is_on else fake_mode(fake_cuda=num_cuda):
        slot: Any = _private.current_fake_mode()
        slot.shape_env = None  # proxies ask whatever is in the slot for symbolic sizes
        lift = _private.swap_only_lift_cpu(num_cuda > 0)  # or a constant would move to the CPU
        try:
            yield
        finally:
            _private.swap_only_lift_cpu(lift)


def making_constants(tensors: list[torch.Tensor]) -> Any:
    """A mode in which the device of the tensors is there, for the constants that ``forward`` makes.

    Those of a deferred module are recorded, so that they can become real with it.
    """
    num_cuda = _num_cuda([t for t in tensors if isinstance(t, FakeTensor)])
    if _state.current() is not None or not num_cuda:
        return contextlib.nullcontext()
    is_deferred = any(map(is_deferred_fake, tensors))
    return (deferred_mode if is_deferred else fake_mode)(fake_cuda=num_cuda)


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Context: no mode of ours is on, on this thread."""
    modes, _state.thread.modes = _state.thread.modes, []
    slot, lift = _private.swap_fake_mode(None), _private.swap_only_lift_cpu(False)
    _function.autocast_changed()
    try:
        yield
    finally:
        _state.thread.modes = modes
        _private.swap_only_lift_cpu(lift)
        _private.swap_fake_mode(slot)
        _function.autocast_changed()


@contextlib.contextmanager
def proxies_decide() -> Iterator[None]:
    """Context: of a proxy and a fake among the arguments of a torch function, the proxy decides."""
    own = vars(_state.thread)
    before = own.get("torch_function")
    own["torch_function"] = _private.disabled_torch_function
    try:
        yield
    finally:
        own.pop("torch_function", None)
        if before is not None:
            own["torch_function"] = before


# Twins.


@contextlib.contextmanager
def _copying(module: nn.Module) -> Iterator[None]:
    """Context for copying a module: what is real is copied as that."""
    try:
        with outside_modes():
            yield
    except Exception as error:
        raise TraceError(
            f"{type(module).__name__} cannot be copied, and a copy is what is traced: "
            f"{type(error).__name__}: {error}"
        ) from error


class _FakeTwins(Twins):
    """Twins that know the values of small buffers, but for those that are deferred: to be read,
    they would have to be made, and what they come from may be large.
    """

    def of(self, real: torch.Tensor) -> FakeTensor:
        self.known = not is_deferred_fake(real)
        return super().of(real)


def fake_twin(function: Any) -> tuple[Any, Foreign]:
    """A module's twin of torchfake's fakes, and which tensor stands for which.

    Of a module's method, it is that of the twin; any other function is its own.
    """
    owner = getattr(function, "__self__", None)
    if inspect.ismethod(function) and isinstance(owner, nn.Module):
        twin, foreign = fake_twin(owner)
        return types.MethodType(function.__func__, twin), foreign
    if not isinstance(function, nn.Module):
        return function, Foreign()
    twins = _FakeTwins(None)
    with _copying(function):
        twin = twins.of_module(function)
    names = {id(t): name for name, t in reversed(list(_named(function)))}
    originals = list(all_tensors(function, set()))
    return twin, Foreign((names.get(id(t), ""), t, twins.by_tensor[id(t)]) for t in originals)


def fakes_of(tree: Any) -> Any:
    """The fake twins of tensors in a tree of inputs, of unknown values. Each is one of its own:
    a tensor that is given twice is two inputs.
    """
    return pytree.tree_map_only(torch.Tensor, fake_like, tree)


def symbolic_twin(module: nn.Module) -> nn.Module:
    """A copy that shares the parameters, which nothing touches in a symbolic trace.

    It may compute with buffers, so those are copied, records and known values included.
    """
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    with _copying(module):
        for tensor in all_tensors(module, set()):
            if not tensor.is_leaf:  # which cannot be copied with its history
                memo[id(tensor)] = tensor.detach().clone()
        return copy.deepcopy(module, memo)


class TorchTwins:
    """Twins of torch's own fakes for what is fake or on ``meta``; what is real stays itself."""

    def __init__(self) -> None:
        self.fakes = TorchFakes()
        self._twins: dict[int, Any] = {}  # by the identity of what they stand for
        self._originals: dict[int, torch.Tensor] = {}  # by that of the twin
        self.has_cuda = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if not (isinstance(tensor, FakeTensor) or tensor.is_meta):
            return tensor
        if id(tensor) not in self._twins:
            twin = self.fakes.of(tensor)
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(twin, requires_grad=False)
            twin.requires_grad_(tensor.requires_grad)
            self.has_cuda |= tensor.is_cuda
            self._twins[id(tensor)] = twin
            self._originals[id(twin)] = tensor
        return self._twins[id(tensor)]  # type: ignore[no-any-return]

    def of_tree(self, tree: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, self.of, tree)

    def of_module(self, module: nn.Module) -> nn.Module:
        memo = {id(tensor): self.of(tensor) for tensor in all_tensors(module, set())}
        with _copying(module):
            return copy.deepcopy(module, memo)

    def give_back(self, table: dict[str, Any]) -> None:
        """Put what they stand for in the place of twins."""
        for name, value in table.items():
            table[name] = self._originals.get(id(value), value)


def _named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


# Calls.


class Call:
    """A function and what it is called with, by name."""

    def __init__(self, function: Callable[..., Any], inputs: Any, kwargs: dict[str, Any]) -> None:
        bound = signature_of(function).bind(*inputs, **kwargs)
        self._function = function
        self._positional = list(_names(bound))
        self.values = {**dict(zip(self._positional, bound.args, strict=True)), **bound.kwargs}

    def with_values(self, values: dict[str, Any]) -> Any:
        """Call it with other values for some names."""
        values = {**self.values, **values}
        args = [values.pop(name) for name in self._positional]
        return self._function(*args, **values)

    def function_of(self, names: list[str], around: Any) -> Callable[..., Any]:
        """The call as a function of the arguments named, made inside the context `around`."""

        def call(*values: Any) -> Any:
            with around:
                return self.with_values(dict(zip(names, values, strict=True)))

        written = [n if n.isidentifier() else f"arg{i}" for i, n in enumerate(names)]
        parameters = ", ".join(written)  # a tracer names its inputs after them
        return eval(f"lambda {parameters}: call({parameters})", {"call": call})  # type: ignore[no-any-return]


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """How it is called."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return inspect.signature(called)
    except ValueError:  # a builtin, as most functions of torch
        return inspect.signature(lambda *arg, **kwargs: None)


def _names(bound: inspect.BoundArguments) -> Iterator[str]:
    """Of the positional arguments."""
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    num_left = len(bound.args)
    for name in bound.arguments:
        if not num_left:
            return
        if kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{name}_{i}" for i in range(num_left))
            return
        yield name
        num_left -= 1
