"""The one style of all figures: size, fonts, colours, markers of evidence, the stamp, and deterministic saving."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.errors import C3Error
from c3lib.files import write_bytes, write_text
from c3lib.hardware import load_node, node_names
from c3lib.results import publishable

WIDTH_IN, HEIGHT_IN, DPI = 6.5, 3.8, 150
STAMP_PT = 7.5

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same letters
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "svg.hashsalt": "c3lib",
    "svg.fonttype": "path",
}

_RC: Any = {**matplotlib.rcParamsDefault, **RC}

# CU-driven strategies are orange to brown, DMA-driven ones blue: the two families differ in hue and in lightness.
STRATEGY = {
    "c3_base": "#F2A93B",
    "c3_sp": "#D9711C",
    "c3_rp": "#A14A0B",
    "c3_sp_rp": "#5E2A06",
    "conccl": "#5AA7D6",
    "conccl_rp": "#14548C",
}
# Finer-grain schedules: 1-D ones blue to green, the 2-D one red-purple, what they are compared with grey and black.
SCHEDULE = {
    "serial": "#8A8A8A",
    "shard_p2p": "#222222",
    "uniform_fused_1d": "#0072B2",
    "hetero_fused_1d": "#56B4E9",
    "hetero_unfused_1d": "#009E73",
    "uniform_fused_2d": "#C4529A",
}
SCHEDULE_MARKER = dict(zip(SCHEDULE, "|XosD^", strict=True))
LENGTH_CLASS = {"G-long": "#117733", "GC-equal": "#B8A642", "C-long": "#882255"}
KIND = {"all-gather": "#2A9D8F", "all-to-all": "#7B4EA3"}
SHORT = {"all-gather": "AG", "all-to-all": "A2A", "compute": "CB", "memory": "MB"}
BOUND = {"compute": "#332288", "memory": "#CC6677"}
BOUND_MARKER = {"compute": "o", "memory": "^"}
BLAME = {
    "cu": "#CC6677",
    "hbm": "#332288",
    "queueing": "#88CCEE",
    "cache": "#999933",
    "link": "#44AA99",
    "launch": "#BBBBBB",
    "dispatch": "#AA4499",
}
HOST_VIEW = "one rank's view over the host link"
"""Said wherever a node of topology ``host`` is shown: its peers' buffers stand in host memory."""

CONCCL, FICCO = "arXiv 2412.14335", "arXiv 2512.10236"
"""The two papers, as a stamp names where a reported value is from."""

GREY, FAINT = "#6E6E6E", "#DADADA"
NOT_MEASURED = "#CC3311"
"""Written over a figure of rows that no GPU made."""

REPORTED: dict[str, Any] = {"marker": "D", "mfc": "white", "mec": GREY, "mew": 1.2, "ls": "none", "color": GREY}
"""Marker of a reported value: a hollow grey diamond; modelled ones are filled and solid."""
MODELLED: dict[str, Any] = {"marker": "o", "mew": 0, "ls": "none"}


@dataclass(frozen=True)
class Saved:
    """A figure on disk, as SVG and PNG; a notebook shows the PNG."""

    svg: Path
    png: Path

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.png.read_bytes(), {"width": round(WIDTH_IN * 110)}


class Finding(str):
    """Markdown text whose numbers were read from rows; a notebook shows it as such."""

    def _repr_markdown_(self) -> str:
        return str(self)


def labelled(find: Callable[..., Finding]) -> Callable[..., Finding]:
    """Decorates a function that tells a finding of rows: its text says so where they are not a measurement."""

    @wraps(find)
    def told(rows: pd.DataFrame, *args: Any, **more: Any) -> Finding:
        found = find(rows, *args, **more)
        real = "evidence" not in rows or rows["evidence"].ne(NOT_A_MEASUREMENT).all()
        return found if real else Finding(f"**This is {NOT_A_MEASUREMENT}: no GPU ran it.** {found}")

    return told


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Decorates a figure function, so that it draws in the one style whatever the session's settings are."""

    @wraps(draw)
    def drawn(*args: Any, **more: Any) -> Figure:
        with matplotlib.rc_context(_RC):
            return draw(*args, **more)

    return drawn


def canvas(rows: int = 1, columns: int = 1, *, height_in: float = HEIGHT_IN, **more: Any) -> tuple[Figure, Any]:
    """A figure of the reader's width with room for the stamp, and its axes (one, or an array)."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout=_layout(0.2 / height_in))
    return figure, figure.subplots(rows, columns, **more)


def _layout(room: float) -> ConstrainedLayoutEngine:
    """A layout that leaves the share ``room`` of the figure's height to the stamp."""
    return ConstrainedLayoutEngine(rect=(0, room, 1, 1 - room))


def shown(rows: pd.DataFrame) -> str:
    """The evidence of the rows, if a figure may show them.

    Raises:
        C3Error: no rows, no ``evidence`` column, mixed evidence, or measured rows without their byte check.
    """
    if "evidence" not in rows:
        raise C3Error("figure: its rows need a column evidence")
    if "verified" not in rows and (rows["evidence"] == "measured").any():
        raise C3Error("figure: measured rows need a column verified, which says that their bytes were compared")
    needed = {"verified": False, "scenario": "", "strategy": ""}  # rows about one kernel alone do without them
    publishable(rows.assign(**{name: value for name, value in needed.items() if name not in rows}))
    return str(rows["evidence"].iloc[0])


def node_of(rows: pd.DataFrame) -> str:
    """Names of the nodes the rows are about, for the stamp."""
    return ", ".join(dict.fromkeys(rows["node"]))


def stamp(
    figure: Figure,
    evidence: str,
    node: str,
    n: str,
    note: str = "our shapes",
    reported: bool = False,
    paper: str = CONCCL,
) -> None:
    """Say in the lower right corner what kind of evidence a figure shows, for which node, from how many cases."""
    text = " · ".join(filter(None, (evidence, node, n, note, _view(node, note))))
    text += f"  |  ◇ reported, {paper}" if reported else ""
    written = figure.text(0.995, 0.008, text, ha="right", va="bottom", fontsize=STAMP_PT, color=GREY, gid="stamp")
    if written.get_window_extent().x0 < 0.01 * figure.bbox.width:  # a margin, as letters differ a little by format
        written.set_text(_two_lines(text))
        figure.set_layout_engine(_layout(0.33 / figure.get_figheight()))
    if evidence == NOT_A_MEASUREMENT:
        written.set(color=NOT_MEASURED, weight="bold")
        large: dict[str, Any] = {"fontsize": 40, "rotation": 25, "ha": "center", "va": "center", "alpha": 0.3}
        figure.text(0.5, 0.5, evidence, color=NOT_MEASURED, gid="watermark", **large)


def _two_lines(text: str, separator: str = " · ") -> str:
    """The text broken at the separator that leaves the shorter of the longest lines."""
    parts = text.split(separator)
    ways = [[separator.join(parts[:count]), separator.join(parts[count:])] for count in range(1, len(parts))]
    return "\n".join(min(ways, key=lambda lines: max(map(len, lines))))


def _view(node: str, note: str) -> str:
    """What stands for the peers of a GPU whose collectives cross its host link; empty for any other node."""
    if node in node_names() and load_node(node).topology == "host" and HOST_VIEW not in note:
        return HOST_VIEW
    return ""


def stamp_of(figure: Figure) -> str:
    """Text of a figure's stamp, empty if it has none."""
    return next((text.get_text() for text in figure.texts if text.get_gid() == "stamp"), "")


def save(figure: Figure, name: str, out: Path | str) -> Saved:
    """Write ``<out>/<name>.svg`` and ``.png``: the same figure gives the same bytes, and no file is left half-written.

    Raises :class:`C3Error` for a figure without a stamp.
    """
    if not stamp_of(figure):
        raise C3Error(f"figure {name}: has no evidence stamp, so it cannot be published")
    saved = Saved(Path(out, f"{name}.svg"), Path(out, f"{name}.png"))
    with matplotlib.rc_context(_RC):
        for path, metadata in ((saved.svg, {"Date": None, "Creator": None}), (saved.png, {"Software": None})):
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], metadata=metadata)
            found = content.getvalue()
            write_bytes(path, _numbered_ids(found) if path == saved.svg else found)
    return saved


def _numbered_ids(svg: bytes) -> bytes:
    """The SVG with its ids numbered in order of appearance.

    matplotlib derives them from coordinates in full precision, and the layout's last digit depends on the order of
    a set: the same figure would now and then get other ids, though every coordinate is written the same.
    """
    names: dict[bytes, bytes] = {}

    def numbered(match: re.Match[bytes]) -> bytes:
        return names.setdefault(match[0], b"id%03d" % len(names))

    return re.sub(rb'(?<=[#"])[a-zA-Z][0-9a-f]{10}(?=[")])', numbered, svg)


def save_table(table: pd.DataFrame, name: str, out: Path | str) -> pd.DataFrame:
    """Write ``<out>/<name>.csv`` and return the table, for a notebook to show."""
    write_text(Path(out, f"{name}.csv"), table.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
    return table


def size_axis(axis: Any, sizes: Iterable[float], label: str) -> None:
    """A logarithmic x axis of bytes with ticks such as 4 KiB and 1 GiB."""
    from c3lib.workload import format_size

    low, high = min(sizes), max(sizes)
    ticks = [2**power for power in range(0, 61, 4 if high / low > 2**10 else 2) if low <= 2**power <= high]
    axis.set_xscale("log", base=2)
    axis.set_xlim(low, high)
    axis.set_xticks(ticks, [format_size(tick).replace(" ", "\n") for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(label)


def spread(values: Iterable[float], gap: float) -> np.ndarray:
    """Positions for labels at ``values``, moved apart to at least ``gap`` and otherwise as near as can be."""
    values = np.asarray(list(values), float)
    order = np.argsort(values, kind="stable")
    placed = values[order].copy()
    for _ in range(200):
        for i in range(len(placed) - 1):
            lack = gap - (placed[i + 1] - placed[i])
            if lack > 1e-12:
                placed[i] -= lack / 2
                placed[i + 1] += lack / 2
    result = np.empty_like(placed)
    result[order] = placed
    return result
