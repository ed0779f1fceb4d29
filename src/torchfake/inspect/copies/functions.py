"""Copies functions so that the copies refer to copies of objects.

Input: functions of the user. Output: functions with the same code, and with globals, closures and
defaults of their own. Invariant: the originals, their globals and their cells are not changed.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torchfake.inspect.copies.references import global_names, is_of_library


class FunctionCopies:
    """Copies of functions, empty until :meth:`fill`, because functions may refer to each other."""

    def __init__(self, functions: list[types.FunctionType]) -> None:
        self._originals = functions
        self._globals: dict[int, dict[str, Any]] = {}  # by the id of the original globals
        self._cells: dict[int, types.CellType] = {}  # by the id of the original, perhaps shared
        self.by_id = {id(function): self._empty(function) for function in functions}

    def _empty(self, function: types.FunctionType) -> types.FunctionType:
        known = function.__globals__
        if is_of_library(function.__code__):
            own = known
        else:
            own = self._globals.setdefault(id(known), dict(known))
        cells = tuple(
            self._cells.setdefault(id(cell), types.CellType())
            for cell in function.__closure__ or ()
        )
        made = types.FunctionType(function.__code__, own, function.__name__, None, cells)
        made.__dict__.update(function.__dict__)
        return made

    def fill(self, copy_of: Callable[[Any], Any]) -> None:
        """Bind the globals, closures and defaults of all copies to copies of their values."""
        for function in self._originals:
            made = self.by_id[id(function)]
            for name in global_names(function):
                made.__globals__[name] = copy_of(function.__globals__[name])
            for cell in function.__closure__ or ():
                self._fill_cell(cell, copy_of)
            made.__defaults__ = copy_of(function.__defaults__)
            made.__kwdefaults__ = copy_of(function.__kwdefaults__)

    def _fill_cell(self, cell: types.CellType, copy_of: Callable[[Any], Any]) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            return
        self._cells[id(cell)].cell_contents = copy_of(value)
