"""The operators that calls consist of, forward and backward, each compared alone.

Input: calls, run in eager. Output: for each operator of aten that gives a result other than fakes
of the same arguments do, what differs. It shows of which operator a difference of a whole call
comes; a difference of a composite, which C++ composes otherwise for fakes, it does not see.
"""

from __future__ import annotations

import collections
import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import torchfake
from tests.strides.calls import NAMES, cases_of
from tests.strides.outcomes import describe, eager_outcome

Found = dict[str, dict[str, str]]


class Operations(TorchDispatchMode):
    """Runs each operator on fakes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Found = collections.defaultdict(dict)
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten" or func._schema.is_mutable:
            return func(*args, **kwargs)
        key = _text(func, args, kwargs)
        if key in self.seen:
            return func(*args, **kwargs)
        self.seen.add(key)
        fakes: Any = None
        if not any(isinstance(v, torch.Generator) for v in kwargs.values()):
            fakes = _fakes((args, kwargs))
        try:
            real = func(*args, **kwargs)
        except Exception as error:
            self._note(func, key, fakes, error, None)
            raise
        self._note(func, key, fakes, None, real)
        return real

    def _note(self, func: Any, key: str, fakes: Any, error: Any, real: Any) -> None:
        if fakes is None:
            return
        try:
            with torchfake.fake_mode():
                fake = func(*fakes[0], **fakes[1])
        except Exception as raised:
            if error is None and not isinstance(raised, torchfake.errors.TorchFakeError):
                self.found[str(func)][key] = f"{type(raised).__name__} {str(raised)[:100]}"
            return
        if error is not None:
            self.found[str(func)][key] = f"accepted, {type(error).__name__} {str(error)[:100]}"
            return
        got, expected = ([_brief(t) for t in tree_flatten(v)[0]] for v in (fake, real))
        if got != expected:
            wrong = [(g, e) for g, e in zip(got, expected, strict=False) if g != e]
            self.found[str(func)][key] = f"{wrong[0][0]} is not {wrong[0][1]}"


def _fakes(arguments: Any) -> Any:
    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.layout != torch.strided:
            raise ValueError
        return torchfake.fake_like(value)

    try:
        with torch.no_grad():
            return tree_map(fake, arguments)
    except Exception:
        return None


def _brief(value: Any) -> Any:
    found = describe(value, [])
    return found if isinstance(found, str) else (*found[:4], *found[4:6])


def _text(func: Any, args: Any, kwargs: Any) -> str:
    def text(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.layout != torch.strided:
            return str(value.layout)
        lazy = "c" * value.is_conj() + "n" * value.is_neg()
        return f"{str(value.dtype)[6:]}{list(value.shape)}{value.stride()}{lazy}".replace(" ", "")

    return f"{func}: {tree_map(text, args)} {tree_map(text, kwargs)}"


def _found(name: str, limit: int) -> Found:
    operations = Operations()
    for case in cases_of(name, limit):
        with operations:
            eager_outcome(case)
    return operations.found


def main(names: list[str], limit: int) -> None:
    total: Found = collections.defaultdict(dict)
    for name in names or NAMES:
        for func, found in _found(name, limit).items():
            total[func].update(found)
    for func, found in sorted(total.items(), key=lambda item: -len(item[1])):
        print(f"{func}: {len(found)}")
        for key, what in list(found.items())[:: max(1, len(found) // 4)][:5]:
            print(f"    {key}: {what}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main([a for a in sys.argv[1:] if not a.isdigit()], 1)
