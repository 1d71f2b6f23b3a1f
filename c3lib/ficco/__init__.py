"""Finer-grain overlap of a GEMM with the collective that feeds it: schedules as task graphs (arXiv 2512.10236)."""

from c3lib.ficco.graph import Block, Buffer, Program, Task
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import FINER, SCHEDULES, build

__all__ = ["FINER", "SCHEDULES", "Block", "Buffer", "Problem", "Program", "Task", "build"]
