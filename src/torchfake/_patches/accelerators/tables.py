"""Tables of the answers that a mode gives for a module, and the patches made of them.

Input: a table: names in a module and its submodules, such as ``"nvtx.range_push"``, each with an
answer or a reason to refuse. Output: patches. Invariant: a replacement first checks whether the
mode of this thread has devices of the table's type, and calls the original if not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from torchfake._core import modes
from torchfake._core.modes import FakeAccelerator
from torchfake._patches.accelerators.class_stand_ins import never, stand_in
from torchfake._patches.patch import Patch
from torchfake._torch import dispatcher
from torchfake.errors import UnsupportedOpError

Answer = Callable[..., Any]
"""A function that takes the fake machine, and then the arguments of the original."""

NO_KERNELS = "no kernel runs there"
NO_DRIVER = "there is no driver behind them"
NO_SENSOR = "there is nothing to measure"
NO_MEMORY = "they have no memory"
NO_CAPTURE = "no kernel runs there that could be captured; run the function itself"


def each(names: str, value: Any) -> dict[str, Any]:
    """The part of a table in which all of `names` have one answer, or one reason."""
    return dict.fromkeys(names.split(), value)


_MISSING = object()
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


class Table(NamedTuple):
    """The answers for one module of torch while a mode has fake devices of a type."""

    module: str  # "torch.cuda"
    device_type: str | None  # of the fake devices; None: any type
    answered: Mapping[str, Answer]
    refused: Mapping[str, str] = {}  # the reason, by function, class or submodule
    unchanged: frozenset[str] = frozenset()  # torch's own, which call answered ones


def fake_machine(device_type: str | None) -> FakeAccelerator | None:
    """The fake machine of this thread's mode, if its devices are of `device_type` (None: any type).

    None while the mode is suspended: computations are real then, and if torch's lazy initialization
    were answered, C++ would take the devices for initialized for good.
    """
    state = modes.current()
    machine = None if state is None else state.accelerator
    if machine is None or device_type not in (None, machine.device_type):
        return None
    return None if dispatcher.current_fake_mode() is None else machine


def patches_of(table: Table) -> list[Patch]:
    """The patches made of a table, for the modules that have been imported."""
    if table.module not in sys.modules:
        return []
    made: list[Patch] = []
    references = _References(table.module)
    for name, answer in table.answered.items():
        owner, attribute = _owner(table.module, name)
        original = vars(owner).get(attribute, _MISSING) if owner is not None else _MISSING
        if original is _MISSING:
            continue
        if isinstance(original, type):
            made += _patches_of_class(original, answer, table, references)
        else:
            replace = functools.partial(_replacement, answer, table.device_type)
            made += [Patch(o, a, replace) for o, a in references.to(original)]
    for name, reason in table.refused.items():
        made += _refusals(name, reason, table, references)
    return made


def _owner(module: str, name: str) -> tuple[Any, str]:
    path, _, attribute = name.rpartition(".")
    return sys.modules.get(f"{module}.{path}" if path else module), attribute


class _References:
    """All names of functions and classes in a module and its submodules, which import from each
    other. Collected once for a table, since there are thousands of modules.
    """

    def __init__(self, module: str) -> None:
        self._places: dict[int, list[tuple[Any, str]]] = {}
        for name, each in list(sys.modules.items()):
            if each is not None and (name == module or name.startswith(module + ".")):
                for attribute, value in list(vars(each).items()):
                    self._places.setdefault(id(value), []).append((each, attribute))

    def to(self, original: Any) -> list[tuple[Any, str]]:
        """The modules and attributes that refer to `original`."""
        return self._places.get(id(original), [])


def _patches_of_class(
    cls: type, answer: Answer, table: Table, references: _References
) -> list[Patch]:
    """Patches of the construction of a class: of its own ``__new__``, or else of all its names.

    A constructed object need not be of the class. C++ classes of other modules: see ``stand_ins``.
    """
    if "__new__" in vars(cls) and not cls.__flags__ & _IMMUTABLE:
        make = functools.partial(_constructor, answer, table.device_type)
        return [Patch(cls, "__new__", make)]
    if cls.__flags__ & _IMMUTABLE and not cls.__module__.startswith(table.module):
        return []
    make = functools.partial(stand_in, _constructing(answer, table.device_type), never)
    return [Patch(owner, name, make) for owner, name in references.to(cls)]


@functools.cache
def _constructing(answer: Answer, device_type: str | None) -> Any:
    return functools.partial(_construct, answer, device_type)


def _construct(answer: Answer, device_type: str | None, cls: Any, *args: Any, **kwargs: Any) -> Any:
    machine = fake_machine(device_type)
    return cls(*args, **kwargs) if machine is None else answer(machine, *args, **kwargs)


def _refusals(name: str, reason: str, table: Table, references: _References) -> list[Patch]:
    submodule = sys.modules.get(f"{table.module}.{name}")
    if submodule is not None:
        names = [f"{name}.{each}" for each in public_names(submodule)]
    else:
        names = [name]
    made = []
    for each in names:
        owner, attribute = _owner(table.module, each)
        original = vars(owner).get(attribute) if owner is not None else None
        answer = refusal(f"{table.module}.{each}", reason)
        if isinstance(original, type):
            made += _patches_of_class(original, answer, table, references)
        elif callable(original):
            replace = functools.partial(_replacement, answer, table.device_type)
            made += [Patch(o, a, replace) for o, a in references.to(original)]
    return made


def public_names(module: Any) -> list[str]:
    """The names of the public functions and classes that a module of torch defines itself."""
    listed = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    root = ".".join(module.__name__.split(".")[:2])

    def is_own(value: Any) -> bool:
        return callable(value) and str(getattr(value, "__module__", "")).startswith(root)

    return [name for name in listed if is_own(getattr(module, name, None))]


def refusal(name: str, reason: str) -> Answer:
    """An answer that raises UnsupportedOpError."""

    def refuse(machine: FakeAccelerator, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedOpError(
            f"{name} does not work on fake {machine.device_type} devices: {reason}"
        )

    return refuse


@functools.lru_cache(maxsize=4096)
def _replacement(answer: Answer, device_type: str | None, original: Any) -> Any:
    if not callable(original):
        return answer(original)  # data: an object that checks for the mode

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        machine = fake_machine(device_type)
        if machine is None:
            return original(*args, **kwargs)
        return answer(machine, *args, **kwargs)

    return replacement


@functools.lru_cache(maxsize=256)
def _constructor(answer: Answer, device_type: str | None, original: Any) -> Any:
    function = getattr(original, "__func__", original)
    is_new = isinstance(original, staticmethod)

    @functools.wraps(function)
    def replacement(cls_or_self: Any, *args: Any, **kwargs: Any) -> Any:
        machine = fake_machine(device_type)
        if machine is None:
            return function(cls_or_self, *args, **kwargs)
        return answer(machine, *args, **kwargs)

    return staticmethod(replacement) if is_new else replacement
