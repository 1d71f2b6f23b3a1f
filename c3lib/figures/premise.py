"""The premise: does a copy-engine transfer leave the GEMM's caches and memory reads alone? Hardware counters say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import beside, medians, percent, stamp

COUNTERS = {"dram_read_bytes": "device-memory reads", "l2_miss_sectors": "L2 misses"}
"""Counters that the premise is judged by."""

UNIT_BYTES = {"dram_read_bytes": 1, "l2_miss_sectors": 32}

LIMIT = 0.02
"""A transfer leaves the GEMM alone when it adds less than this share to either counter (ours, set beforehand)."""

READ_AGAIN = 0.95
"""L2 is said to serve a part of a transfer that reads less than this share of its payload from memory (ours)."""

ENGINE = "copy_engine"
VERDICT = {
    True: "the premise **holds**",
    False: "the premise is **refuted**",
    None: "the premise is **undecided**",
}


def arm_name(arm: str) -> str:
    """``"sm_kernel:4"`` as ``"SM kernel, 4 blocks"``."""
    kind, _, blocks = arm.partition(":")
    return "copy engine" if kind == ENGINE else f"SM kernel, {blocks} block{'s' * (blocks != '1')}"


def added(rows: pd.DataFrame) -> pd.DataFrame:
    """What a transfer adds to the GEMM's counters beyond its own traffic, as a share of the GEMM's alone.

    ``(both - own) / GEMM alone - 1`` of medians, twice, as nobody can count the transfer's part of a concurrent run
    (the two coincide where every byte is sent once and L2 holds none of them).
    ``most`` subtracts what the transfer counts alone, when L2 serves the pieces that it sends again. ``least``
    subtracts its payload, every byte read from memory each time it is sent (or what it counts alone, if that is more).
    The truth lies between. Each has its bootstrap 95 % interval (the samples drawn independently), ``…_low`` to
    ``…_high``. A row a GEMM, transfer and counter of :data:`COUNTERS`; ``blocks`` is 0 for a copy engine;
    ``extra``, ``own`` and ``payload`` are in the counter's unit.

    Raises:
        C3Error: rows that no figure may show, or an arm or counter that the subtraction needs is missing.
    """
    style.shown(rows)
    found = []
    for (gemm, bound), part in rows.groupby(["gemm", "bound"]):
        values = part.groupby(["arm", "counter"])["value"].apply(np.asarray)
        sent_bytes = part.groupby("arm")["link_bytes"].max() / 2  # both ways at once: half of it leaves the GPU
        for arm in sorted((name[5:] for name in part["arm"].unique() if name.startswith("gemm+")), key=_blocks):
            for counter in COUNTERS:
                needed = [(name, counter) for name in (f"gemm+{arm}", arm, "gemm")]
                lacking = [name for name, _ in needed if (name, counter) not in values.index]
                if lacking:
                    raise C3Error(f"premise: {counter} of arm {lacking[0]!r} beside {gemm} is missing")
                both, own, alone = (values[key] for key in needed)
                payload = sent_bytes[f"gemm+{arm}"] / UNIT_BYTES[counter]
                row = {"gemm": gemm, "bound": bound, "arm": arm, "blocks": _blocks(arm), "counter": counter}
                for name, sample in (("least", np.maximum(own, payload)), ("most", own)):
                    row[name] = _share(both, sample, alone)
                    row[f"{name}_low"], row[f"{name}_high"] = _interval(both, sample, alone)
                row |= {"extra": np.median(both) - np.median(alone), "own": np.median(own), "payload": payload}
                found.append(row)
    return pd.DataFrame(found).assign(node=rows["node"].iloc[0], evidence="measured")


def _blocks(arm: str) -> int:
    return int(arm.partition(":")[2] or 0)


def _share(both: np.ndarray, own: np.ndarray, alone: np.ndarray, axis: int = -1) -> float:
    return (np.median(both, axis) - np.median(own, axis)) / np.median(alone, axis) - 1


def _interval(both: np.ndarray, own: np.ndarray, alone: np.ndarray) -> tuple[float, float]:
    samples = (both, own, alone)
    if min(map(len, samples)) < 2 or all(np.ptp(sample) == 0 for sample in samples):
        return (_share(both, own, alone),) * 2
    from scipy.stats import bootstrap

    rng = np.random.default_rng(0)
    found = bootstrap(samples, _share, n_resamples=2000, method="percentile", rng=rng, vectorized=True)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def holds(table: pd.DataFrame, arm: str = ENGINE, limit: float = LIMIT) -> bool | None:
    """Whether the transfer leaves the GEMM alone: True if at most, False if even at least; None in between."""
    part = table[table["arm"] == arm]
    if (part["least_low"] > limit).any():
        return False
    return True if (part["most_high"] <= limit).all() else None


@style.styled
def counters(rows: pd.DataFrame) -> Figure:
    """What each transfer adds to the GEMM's memory reads and L2 misses beyond its own traffic."""
    table = added(rows)
    arms = list(table.sort_values("blocks", ascending=False, kind="stable")["arm"].unique())
    figure, axes = style.canvas(1, len(COUNTERS), sharey=True, height_in=max(2.8, 1.4 + 0.36 * len(arms)))
    bounds = [bound for bound in style.BOUND if bound in table["bound"].values]
    for axis, (counter, title) in zip(axes, COUNTERS.items(), strict=True):
        right = max(LIMIT, table.loc[table["counter"] == counter, "most_high"].max()) * 100
        for bound, offset in zip(bounds, (0.17, -0.17) if len(bounds) > 1 else (0,), strict=True):
            part = table[(table["counter"] == counter) & (table["bound"] == bound)]
            y, colour = part["arm"].map(arms.index) + offset, style.BOUND[bound]
            axis.hlines(y, part["least"] * 100, part["most"] * 100, color=colour, lw=6, alpha=0.35)
            axis.hlines(y, part["least_low"] * 100, part["most_high"] * 100, color=colour, lw=1.2)
            for end in ("least", "most"):
                axis.plot(part[end] * 100, y, color=colour, ls="none", marker=style.BOUND_MARKER[bound], ms=4.5, mew=0)
            for height, row in zip(y, part.itertuples(), strict=True):
                text = _ends(row, 1).replace(" %", "")
                axis.text(right * 1.06, height, text, va="center", fontsize=7.5, color=colour)
        axis.axvline(0, color="#444444", lw=0.9)
        axis.axvspan(-LIMIT * 100, LIMIT * 100, color=style.FAINT, alpha=0.8, lw=0, zorder=0)
        axis.set_xlim(min(-0.04 * right, table.loc[table["counter"] == counter, "least_low"].min() * 100), right * 1.04)
        axis.set_title(title)
        axis.set_xlabel("% added to the GEMM's own")
    axes[0].set_yticks(range(len(arms)), [arm_name(arm) for arm in arms])
    axes[0].set_ylim(-0.6, len(arms) - 0.4)
    for place, bound in enumerate(bounds):
        symbol = {"o": "●", "^": "▲"}[style.BOUND_MARKER[bound]]
        look = {"ha": "right", "va": "top", "weight": "bold", "fontsize": 8.5, "color": style.BOUND[bound]}
        axes[0].text(0.93, 0.99 - 0.075 * place, f"{symbol} {bound}-bound", transform=axes[0].transAxes, **look)
    stamp(figure, rows, f"{table['gemm'].nunique()} GEMMs")
    return figure


def _ends(row: Any, places: int = 2) -> str:
    """What is added, at least to at most; one number where the two round to the same."""
    return " to ".join(dict.fromkeys(percent(share, places) for share in (row.least, row.most)))


def finding_verdict(rows: pd.DataFrame) -> style.Finding:
    """The verdict on the premise with its numbers, what SM kernels add, and what would have refuted it."""
    table = added(rows)
    engine, parts = table[table["arm"] == ENGINE], []
    for bound, part in engine.groupby("bound"):
        each = [
            f"{COUNTERS[row.counter]} {_ends(row)} [{percent(row.least_low, 2)}, {percent(row.most_high, 2)}]"
            for row in part.itertuples()
        ]
        parts.append(f"{bound}-bound GEMM beside a copy engine: {', '.join(each)}")
    text = f"By counters {VERDICT[holds(table)]}. " + "; ".join(parts) + ".  \n"
    for row in engine[engine["counter"] == "dram_read_bytes"].itertuples():
        served = ", and L2 serves the rest" if row.own < READ_AGAIN * row.payload else ""
        text += (
            f"Together with the {row.bound}-bound GEMM {row.extra / 1e6:.1f} MB more are read than by the GEMM alone; "
            f"the copy engine sends {row.payload / 1e6:.1f} MB; alone it reads {row.own / 1e6:.1f} MB from memory"
            f"{served}.  \n"
        )
    text += _of_kernels(table[table["arm"] != ENGINE])
    text += (
        f"It would have been refuted by more than {LIMIT:.0%} added to either counter beside either GEMM, the whole "
        f"payload subtracted; it holds if not even {LIMIT:.0%} is added with only the traffic of the transfer alone "
        "subtracted; between the two the counters cannot tell whose reads they are."
    )
    return style.Finding(text)


def _of_kernels(table: pd.DataFrame) -> str:
    """By bound: the SM kernel that adds least (to the counter to which it adds more) and the most that any adds."""
    text = ""
    for bound, part in table.groupby("bound"):
        shares = part.pivot(index="arm", columns="counter", values="least")[list(COUNTERS)]
        blocks = {arm: arm_name(arm).removeprefix("SM kernel, ") for arm in shares.index}
        least, most = shares.loc[shares.max(axis=1).idxmin()], shares.max()
        told = [", ".join(f"{percent(each[name], 1)} {COUNTERS[name]}" for name in COUNTERS) for each in (least, most)]
        text += f"The same bytes by an SM kernel beside the {bound}-bound GEMM: {blocks[least.name]} add least, "
        arms = [blocks[shares[name].idxmax()] for name in COUNTERS]
        text += f"{told[0]}; none adds more than {told[1]} ({' and '.join(dict.fromkeys(arms))}).  \n"
    return text


def finding_time(rows: pd.DataFrame) -> style.Finding:
    """The other half of the premise, from the ``order`` table: what the GEMM's time suffers beside a copy engine."""
    pairs = beside(rows)
    engine = pairs[(pairs["transport"] == ENGINE) & (pairs["sms_asked"] == 0) & (pairs["direction"] == "both")]
    parts = []
    for row in medians(engine, ["bound", "gemm"], "gemm_slowdown").itertuples():
        clean = "is not slowed" if row.high <= 1 + LIMIT else "**is slowed**" if row.low > 1 + LIMIT else "is undecided"
        parts.append(
            f"{row.bound}-bound {row.gemm} {clean}: {row.median:.3f}x its time alone [{row.low:.3f}, {row.high:.3f}]"
        )
    return style.Finding("Time beside a copy engine, both ways at once. " + "; ".join(parts) + ".")


def counter_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians of every counter in every arm, one row an arm; ``l2_hit_rate`` is the share of sectors that L2 held."""
    table = medians(rows, ["gemm", "bound", "arm", "counter"], "value")
    wide = table.pivot(index=["gemm", "bound", "arm"], columns="counter", values="median").reset_index()
    wide.columns.name = None
    if {"l2_hit_sectors", "l2_miss_sectors"} <= set(wide):
        wide["l2_hit_rate"] = wide["l2_hit_sectors"] / (wide["l2_hit_sectors"] + wide["l2_miss_sectors"])
    return wide
