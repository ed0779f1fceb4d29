"""Everything in torch that a program could replace, listed and compared by identity.

A snapshot has the attributes of each module of torch and of each class in them, the code and the
defaults of their functions, and what their dicts, lists and sets hold. Modules of Python that
torchfake replaces functions of are listed too, and the lists by which Python imports and warns.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

OF_PYTHON = (
    "concurrent.futures",
    "concurrent.futures.thread",
    "copy",
    "multiprocessing",
    "pickle",
    "threading",
    "warnings",
)
_MISSING: Any = type("missing", (), {"__repr__": lambda self: "missing"})()
_IN_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__wrapped__")


def of_torch() -> dict[str, types.ModuleType]:
    """The modules of torch and the listed ones of Python that are imported."""
    found = {name: module for name, module in sys.modules.items() if module is not None}
    return {
        name: module
        for name, module in found.items()
        if name == "torch" or name.startswith("torch.") or name in OF_PYTHON
    }


def snapshot() -> dict[str, Any]:
    """Everything, by a path. It is kept alive, so that an identity is not used twice."""
    seen: set[int] = set()
    found: dict[str, Any] = {}
    for name, module in of_torch().items():
        for path, value in _in_namespace(name, dict(vars(module)), seen):
            found[path] = value
    found["sys.meta_path[]"] = list(sys.meta_path)
    found["sys.path_hooks[]"] = list(sys.path_hooks)
    found["warnings.filters[]"] = list(warnings.filters)
    return found


def _in_namespace(name: str, namespace: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for key, value in namespace.items():
        path = f"{name}.{key}"
        yield path, value
        yield from _inside(path, value, seen)


def _inside(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    kind = type(value)  # not isinstance(): some objects warn, or start CUDA, for an attribute
    if id(value) in seen or _is_a_fake(value):
        return
    if kind in (staticmethod, classmethod):
        yield from _inside(path, value.__func__, seen)
    elif kind is types.FunctionType:
        seen.add(id(value))
        for name in _IN_FUNCTIONS:
            yield f"{path}.{name}", getattr(value, name, None)
    elif issubclass(kind, type) and str(value.__module__).partition(".")[0] in _OWNERS:
        seen.add(id(value))
        own = f"{value.__module__}:{value.__qualname__}"
        yield from _in_namespace(own, dict(vars(value)), seen)
    elif kind in (dict, list, set):
        seen.add(id(value))
        yield f"{path}[]", kind(value)
    elif str(kind.__module__).partition(".")[0] in _OWNERS and not issubclass(kind, type):
        seen.add(id(value))
        yield from _in_namespace(path, _own_attributes(value), seen)


def _own_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an instance, though its class may make some as they are asked for."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        return {}


_OWNERS = {"torch", *(name.partition(".")[0] for name in OF_PYTHON)}


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """What differs, of all that was there before, and of what is new in a namespace of before."""
    found: dict[str, str] = {}
    namespaces = {path.rpartition(".")[0] for path in before}
    for path in before.keys() | after.keys():
        old, new = before.get(path, _MISSING), after.get(path, _MISSING)
        if old is new or (path not in before and path.rpartition(".")[0] not in namespaces):
            continue
        if path.endswith("[]") and old is not _MISSING and new is not _MISSING:
            found.update(_changed_content(path, old, new))
        else:
            found[path] = f"{_named(old)} -> {_named(new)}"
    return found


def _changed_content(path: str, old: Any, new: Any) -> dict[str, str]:
    if isinstance(old, dict):
        keys = [k for k in {**old, **new} if old.get(k, _MISSING) is not new.get(k, _MISSING)]
        return {path: f"{len(old)} -> {len(new)}: {_named(keys[0])}"} if keys else {}
    if isinstance(old, set):
        return {path: f"{len(old)} -> {len(new)}"} if old != new else {}
    same = len(old) == len(new) and all(map(lambda a, b: a is b, old, new))
    return {} if same else {path: f"{len(old)} -> {len(new)}"}


def _named(value: Any) -> str:
    kind = type(value)
    if kind is types.FunctionType or issubclass(kind, type):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)[:90]


def of_torchfake(found: dict[str, Any]) -> list[str]:
    """The paths at which torch has something of torchfake's."""
    return sorted(path for path, value in found.items() if _is_ours(value))


def _is_ours(value: Any) -> bool:
    kind = type(value)
    if kind in (staticmethod, classmethod):
        return _is_ours(value.__func__)
    if kind is property:
        return any(map(_is_ours, (value.fget, value.fset, value.fdel)))
    if kind is tuple or kind is list:
        return any(_is_ours(each) for each in value if type(each) is not kind)
    if kind is types.FunctionType:
        return _is_of_torchfake(value.__globals__.get("__name__"))
    if kind is types.ModuleType:
        return False
    return _is_a_fake(value) or _is_of_torchfake(
        (value if issubclass(kind, type) else kind).__module__
    )


def _is_a_fake(value: Any) -> bool:
    """Whether it is a fake or a class of fakes, which have the names of torch's modules."""
    kind = type(value)
    mro = value.__mro__ if issubclass(kind, type) else kind.__mro__
    return any("_fake_attributes" in vars(each) for each in mro)  # torchfake is not imported yet


def _is_of_torchfake(module: object) -> bool:
    return str(module).partition(".")[0] == "torchfake"


def described(found: dict[str, Any]) -> dict[str, str]:
    """The functions, classes and tuples of a snapshot, so that two processes can be compared."""
    texts = {path: _described(value) for path, value in found.items()}
    return {path: text for path, text in texts.items() if text}


def _described(value: Any) -> str:
    kind = type(value)
    if kind in (staticmethod, classmethod):
        return _described(value.__func__)
    if kind is property:
        return ", ".join(map(_described, (value.fget, value.fset, value.fdel)))
    if kind is tuple:
        return ", ".join(map(_described, value))
    if kind is types.FunctionType:
        return (
            f"{value.__globals__.get('__name__')}:{value.__code__.co_firstlineno} {_named(value)}"
        )
    return _named(value) if issubclass(kind, type) else ""
