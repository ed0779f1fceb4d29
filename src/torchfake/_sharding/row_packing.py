"""The rows that a rank draws, packed for sending: for each receiving rank in turn, its columns.

Input: elements of a matrix, block by block or all at once. Output: the memory to send. Invariant:
each element is written once, so threads may write blocks at the same time.
"""

from __future__ import annotations

import torch


class PackedRows:
    """The memory that one exchange sends.

    Args:
        memory: room for all rows; its contents are overwritten.
        num_rows: the number of rows.
        columns: the range of columns of each receiving rank.
    """

    def __init__(self, memory: torch.Tensor, num_rows: int, columns: list[tuple[int, int]]) -> None:
        self.num_columns = columns[-1][1]
        self.memory = memory[: num_rows * self.num_columns]
        self.sizes = [num_rows * (last - first) for first, last in columns]
        self._columns = columns
        parts = zip(self.memory.split(self.sizes), columns, strict=True)
        self._parts = [part.view(num_rows, last - first) for part, (first, last) in parts]

    def write(self, start: int, values: torch.Tensor) -> None:
        """Write consecutive elements of the matrix; `start` is the index of the first."""
        width, values = self.num_columns, values.view(self.memory.dtype)
        while values.numel():
            row, column = divmod(start, width)
            if column or values.numel() < width:
                num = min(width - column, values.numel())
                self._write_rows(row, column, values[:num].view(1, num))
            else:
                num = values.numel() // width * width
                self._write_rows(row, 0, values[:num].view(-1, width))
            start, values = start + num, values[num:]

    def _write_rows(self, row: int, column: int, values: torch.Tensor) -> None:
        """Write whole rows, or a part of one row, from the given row and column on."""
        num_rows, stop = values.shape[0], column + values.shape[1]
        for part, (left, right) in zip(self._parts, self._columns, strict=True):
            first, last = max(left, column), min(right, stop)
            if first < last:
                target = part[row : row + num_rows, first - left : last - left]
                target.copy_(values[:, first - column : last - column])
