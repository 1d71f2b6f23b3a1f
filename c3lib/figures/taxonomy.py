"""Figures 4 and 7 of arXiv 2412.14335: which scenarios there are, and how much overlap could gain in each."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.reported import elsewhere, reported
from c3lib.hardware import load_node
from c3lib.metrics import UNSTABLE_IDEAL, ideal_speedup
from c3lib.workload import LONG_RATIO, Gemm, length_class


def one_each(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a scenario, with ``pair``: its name without the kind.

    Isolated times do not depend on the strategy; they are medians over all rows of the scenario, and what follows from
    them is worked out anew, as repetitions of a scenario near a border lie on both sides of it.
    """
    keys, times = ["node", "scenario"], ["gemm_alone_s", "collective_alone_s"]
    alone = rows.groupby(keys)[times].median()
    single = rows.drop(columns=times).drop_duplicates(keys).join(alone, on=keys).reset_index(drop=True)
    gain = ideal_speedup(*(single[name] for name in times))
    classes = [length_class(*pair) for pair in zip(*(single[name] for name in times), strict=True)]
    single = single.assign(ideal=gain, unstable_ideal=gain < UNSTABLE_IDEAL, length_class=classes)
    return single.assign(pair=pair_names(single))


def pair_names(rows: pd.DataFrame) -> list[str]:
    """Scenario names without the ending that names the collective."""
    endings = [f"-{style.SHORT[kind].lower()}" for kind in rows["collective"]]
    return [name.removesuffix(ending) for name, ending in zip(rows["scenario"], endings, strict=True)]


@style.styled
def scenarios(rows: pd.DataFrame) -> Figure:
    """Fig. 4: isolated GEMM time against isolated collective time, with the borders of the length classes."""
    evidence, table = style.shown(rows), one_each(rows)
    figure, axis = style.canvas(height_in=4.2)
    times = table[["gemm_alone_s", "collective_alone_s"]] * 1e3
    low, high = times.min().min() / 1.6, times.max().max() * 1.6
    line = np.array([low, high])
    axis.fill_between(
        line, line / LONG_RATIO, line * LONG_RATIO, color=style.LENGTH_CLASS["GC-equal"], alpha=0.22, lw=0
    )
    for (name, bound), part in table.groupby(["length_class", "bound"], sort=False):
        look = {"color": style.LENGTH_CLASS[name], "marker": style.BOUND_MARKER[bound]}
        axis.scatter(part["gemm_alone_s"] * 1e3, part["collective_alone_s"] * 1e3, s=34, alpha=0.85, lw=0, **look)
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axis.set(xlabel="GEMM alone, Tg (ms)", ylabel="collective alone, Tc (ms)")
    plain_log(axis)
    for name, x, y, side in (("C-long", 0.04, 0.96, "left"), ("G-long", 0.96, 0.04, "right")):
        count = int((table["length_class"] == name).sum())
        place = {"transform": axis.transAxes, "ha": side, "va": "top" if y > 0.5 else "bottom", "weight": "bold"}
        axis.text(x, y, f"{name}: {count}", color=style.LENGTH_CLASS[name], **place)
    equal = int((table["length_class"] == "GC-equal").sum())
    axis.text(1.02, 0.985, f"GC-equal: {equal}", color="#7A6B12", transform=axis.transAxes, va="center", weight="bold")
    for bound, title in (("compute", "compute-bound GEMM (CB)"), ("memory", "memory-bound GEMM (MB)")):
        axis.scatter([], [], s=34, color="#444444", lw=0, marker=style.BOUND_MARKER[bound], label=title)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 0.9), handletextpad=0.2)
    axis.text(
        1.05, 0.66,
        f"a class begins where one\nkernel takes {LONG_RATIO:.0%} of the other;\nAG and A2A of a pair nearly\ncoincide",
        transform=axis.transAxes, va="top", color=style.GREY, fontsize=8.5,
    )  # fmt: skip
    style.stamp(figure, evidence, style.node_of(table), f"{len(table)} scenarios")
    return figure


def plain_log(axis: object) -> None:
    """Log axes in milliseconds read 0.5, 1, 2, 5 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for side in (axis.xaxis, axis.yaxis):  # type: ignore[attr-defined]
        side.set_major_locator(LogLocator(subs=(1, 2, 5)))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Scenarios in each cell of the taxonomy, empty cells included."""
    table = one_each(rows)
    cells = pd.MultiIndex.from_product(
        [["compute", "memory"], ["all-gather", "all-to-all"]], names=["bound", "collective"]
    )
    found = table.pivot_table(index="length_class", columns=["bound", "collective"], values="scenario", aggfunc="count")
    return found.reindex(index=list(style.LENGTH_CLASS), columns=cells).fillna(0).astype(int)


@style.styled
def roofline(rows: pd.DataFrame) -> Figure:
    """Where the suite's GEMMs lie on the roofline of the node: rate reached alone against operational intensity."""
    evidence, table = style.shown(rows), one_each(rows).drop_duplicates("gemm")
    gpu = load_node(table["node"].iloc[0]).gpu
    gemms = [Gemm.parse(text, dtype) for text, dtype in zip(table["gemm"], table["dtype"], strict=True)]
    intensity = np.array([gemm.intensity for gemm in gemms])
    rate = np.array([gemm.flops for gemm in gemms]) / table["gemm_alone_s"] / 1e12
    figure, axis = style.canvas()
    x = np.geomspace(min(10, intensity.min() / 2), max(1e4, intensity.max() * 2), 200)
    roof = lambda peak, memory: np.minimum(peak, x * memory / 1e3)  # noqa: E731
    axis.plot(x, roof(gpu.matrix_peak_tflops, gpu.hbm_peak_gbs), color="#444444", lw=1.2)
    axis.plot(x, roof(gpu.matrix_tflops, gpu.hbm_gbs), color="#444444", lw=1.2, ls=(0, (4, 2)))
    for bound, part in table.assign(x=intensity, y=rate).groupby("bound", sort=False):
        look = {"marker": style.BOUND_MARKER[bound], "color": style.BOUND[bound]}
        axis.scatter(part["x"], part["y"], s=36, lw=0, **look)
        axis.annotate(
            f"{style.SHORT[bound]}: {len(part)} shapes", (part["x"].mean(), part["y"].min()), (0, -12),
            textcoords="offset points", ha="center", va="top", color=style.BOUND[bound], weight="bold",
        )  # fmt: skip
    axis.axvline(gpu.ridge, color=style.GREY, lw=0.8, ls=":")
    floor = rate.min() / 3
    axis.text(gpu.ridge * 1.08, floor * 1.15, f"ridge {gpu.ridge:.0f} flop/B", color=style.GREY)
    axis.text(x[-1], gpu.matrix_peak_tflops * 1.08, "data-sheet peak", ha="right", va="bottom", color="#444444")
    axis.text(gpu.ridge * 1.08, gpu.matrix_tflops * 1.06, "reached by large kernels", va="bottom", color="#444444")
    axis.set_ylim(floor, gpu.matrix_peak_tflops * 1.7)
    axis.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), xlabel="operational intensity (flop/B)", ylabel="TFLOP/s")
    style.stamp(figure, evidence, style.node_of(table), f"{len(table)} GEMM shapes")
    return figure


@style.labelled
def finding(rows: pd.DataFrame) -> style.Finding:
    """What the taxonomy shows: counts, empty cells, and how far from the ridge the GEMMs are."""
    table, cells = one_each(rows), counts(rows)
    node = table["node"].iloc[0]
    classes = ", ".join(f"{count} {name}" for name, count in cells.sum(axis=1).items())
    bounds = table["bound"].value_counts()
    empty = int((cells == 0).sum().sum())
    filled = "every cell is filled" if not empty else f"**{empty} of {cells.size} cells are empty on this node**"
    return style.Finding(
        f"**{len(table)} scenarios on {node}:** {classes}; {bounds.get('compute', 0)} compute-bound and "
        f"{bounds.get('memory', 0)} memory-bound; {filled}." + elsewhere(node)
    )


@style.styled
def ideal(rows: pd.DataFrame) -> Figure:
    """Fig. 7: ideal speedup of each pair, sorted, AG and A2A apart, the mean, and what reported numbers imply."""
    evidence, table = style.shown(rows), one_each(rows)
    order = table.groupby("pair", sort=False)["ideal"].mean().sort_values(kind="stable").index
    place = {name: index for index, name in enumerate(order)}
    figure, axis = style.canvas(height_in=4.3)
    for kind, offset in (("all-gather", 0.14), ("all-to-all", -0.14)):
        part = table[table["collective"] == kind]
        y = part["pair"].map(place) + offset
        colours = part["length_class"].map(style.LENGTH_CLASS)
        axis.hlines(y, 1, part["ideal"], color=colours, lw=1.1, alpha=0.55)
        marker = {"marker": "o" if kind == "all-gather" else "s", "s": 24, "lw": 0}
        axis.scatter(part["ideal"], y, c=colours, **marker)
        axis.scatter([], [], color="#444444", label=kind, **marker)
    axis.set_yticks(range(len(order)), order if len(order) <= 24 else [""] * len(order), fontsize=8)
    axis.set(xlim=(1, 2.02), ylim=(-0.6, len(order) + 0.6), xlabel="ideal speedup (Tg + Tc) / max(Tg, Tc)")
    mean = table["ideal"].mean()
    axis.axvline(mean, color="#222222", lw=1.3)
    axis.text(mean + 0.012, len(order) + 0.45, f"mean {mean:.2f}", va="top")
    implied = implied_mean_ideal(table["node"].iloc[0])
    if implied is not None:
        axis.axvline(implied, color=style.GREY, lw=1.2, ls=(0, (3, 2)))
        axis.plot([implied], [-0.6], clip_on=False, **style.REPORTED)
        axis.text(
            implied - 0.012,
            len(order) + 0.45,
            f"{implied:.2f} implied\nby reported",
            va="top",
            ha="right",
            color=style.GREY,
        )
    for name, colour in style.LENGTH_CLASS.items():
        axis.scatter([], [], color=colour, s=24, label=name)
    axis.legend(loc="lower right", handletextpad=0.1, borderaxespad=0.1)
    style.stamp(figure, evidence, style.node_of(table), f"{len(table)} scenarios", reported=implied is not None)
    return figure


def implied_mean_ideal(node: str) -> float | None:
    """Mean ideal speedup that makes the reported speedup and fraction of ideal of ``c3_base`` agree.

    From ``F = (S - 1) / (I - 1)``: inferred, a ratio of means taken for a mean of ratios. None without reports.
    """
    known = reported(node)
    if not known:
        return None
    return 1 + (known["speedup.mean.c3_base"].value - 1) / known["fraction_of_ideal.c3_base"].value


@style.labelled
def finding_ideal(rows: pd.DataFrame) -> style.Finding:
    """Mean, range and classes of the ideal speedup, and its distance from what the reported numbers imply."""
    table = one_each(rows)
    node = table["node"].iloc[0]
    best, worst = table.loc[table["ideal"].idxmax()], table.loc[table["ideal"].idxmin()]
    text = (
        f"**Perfect overlap would speed {node} up by {table['ideal'].mean():.2f}x on average**, from "
        f"{worst['ideal']:.2f}x ({worst['scenario']}) to {best['ideal']:.2f}x ({best['scenario']})."
    )
    implied = implied_mean_ideal(node)
    if implied is not None:
        text += (
            f" The reported numbers imply about {implied:.2f} (inferred), so our suite offers "
            f"{abs(table['ideal'].mean() - implied):.2f} {'more' if table['ideal'].mean() > implied else 'less'}: "
            "its shapes are ours and were not fitted to this."
        )
    unstable = int(table["unstable_ideal"].sum())
    text += (
        f" In {unstable} scenarios the ideal is too near 1 for a fraction of ideal to mean much." if unstable else ""
    )
    return style.Finding(text + elsewhere(node))
