"""Notebooks by sets of parameters, in parallel: ``c3 batch PARAMS.yaml`` (docs/sweeps.md)."""

from c3lib.batch.run import batch

__all__ = ["batch"]
