"""Tables for a page: whole texts, no index."""

from __future__ import annotations

import pandas as pd


class WholeTable:
    """A table that a notebook shows with every text in full; pandas would cut them at 50 letters."""

    def __init__(self, frame: pd.DataFrame):
        self.frame = frame

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            return self.frame.to_html(index=False, border=0)

    def __repr__(self) -> str:
        return self.frame.to_string(index=False)
