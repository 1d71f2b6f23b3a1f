"""What is known of the elements of a buffer while a program is proven: whose rows or products, who touched them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from c3lib.ficco.graph import Block, Buffer


class Value(NamedTuple):
    """What an element holds, by its own row and column: ``row`` and ``col`` are to be added to them.

    Without ``slices``: an element of the rows that ``src`` gives to ``dst``. With: the sum of those rows times B over
    these slices of K.
    """

    src: int
    dst: int
    row: int
    col: int
    slices: tuple[tuple[int, int], ...] = ()

    def moved(self, a: Block, out: Block) -> Value:
        """The same elements after ``a`` was moved to ``out``."""
        return self._replace(row=self.row + a.row - out.row, col=self.col + a.col - out.col)


@dataclass
class Cell:
    """Columns ``col`` to ``end`` of a band of rows, alike in all that is known. ``readers``: a bit a task."""

    col: int
    end: int
    value: Value | None = None
    given: bool = False
    writer: int = -1
    readers: int = 0


class Contents:
    """A buffer as bands of rows, each a list of cells; cut wherever a block begins or ends."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        self.starts = [0]
        self.bands = {0: [Cell(0, buffer.cols)]}

    def cut(self, block: Block) -> Iterator[tuple[int, int, list[Cell]]]:
        """``(first row, rows, cells)`` of all that lies in the block."""
        for row in (block.row, block.row + block.rows):
            if row not in self.bands and row < self.buffer.rows:
                above = self.starts[bisect_left(self.starts, row) - 1]
                self.bands[row] = [replace(cell) for cell in self.bands[above]]
                insort(self.starts, row)
        first, last = bisect_left(self.starts, block.row), bisect_left(self.starts, block.row + block.rows)
        for at in range(first, last):
            row = self.starts[at]
            below = self.starts[at + 1] if at + 1 < len(self.starts) else self.buffer.rows
            yield row, below - row, self._columns(row, block.col, block.col + block.cols)

    def _columns(self, row: int, col: int, end: int) -> list[Cell]:
        cells = self.bands[row]
        for edge in (col, end):
            for at, cell in enumerate(cells):
                if cell.col < edge < cell.end:
                    cells[at : at + 1] = [replace(cell, end=edge), replace(cell, col=edge)]
                    break
        return [cell for cell in cells if col <= cell.col and cell.end <= end]
