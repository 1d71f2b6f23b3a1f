"""The model card: constants with their sources, what the headline figures hang on, and oracles checked on the spot."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.hardware import load_node
from c3lib.model import fluid, kernels, sharing
from c3lib.model.blame import blame_s
from c3lib.model.contention import predict
from c3lib.model.shared_gpu import MECHANISMS, Mechanisms
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite

HEADLINES = {"c3_base": "c3_base", "c3_sp": "c3_sp", "conccl_rp": "conccl_rp", "speedup_max": "best speedup"}
TOP = 10


def constants(node: str) -> pd.DataFrame:
    """Every constant of a node: value, unit, evidence, the claim it was calibrated on, and its source."""
    items = load_node(node).constants.values()
    table = pd.DataFrame([vars(item) for item in items]).fillna({"calibrated_on": ""})
    return table.set_index("key")[["value", "unit", "evidence", "calibrated_on", "source"]]


def finding_constants(table: pd.DataFrame) -> style.Finding:
    """How many constants there are by evidence, and which were calibrated."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in table["evidence"].value_counts().items())
    told = table[table["calibrated_on"] != ""]
    text = f"{len(table)} constants: {kinds}. Calibrated on a reported result: {len(told)}"
    return style.Finding(text + (f" ({', '.join(told.index)})." if len(told) else "."))


@style.styled
def tornado(rows: pd.DataFrame, node: str) -> Figure:
    """Change of four headline figures when one constant falls or rises, for the constants that matter most."""
    table = rows[rows["metric"].isin(HEADLINES)].assign(evidence="modelled")
    evidence = style.shown(table)
    reach = (table[["low", "high"]].sub(table["base"], axis=0)).abs().max(axis=1)
    order = reach.groupby(table["key"]).max().sort_values().index[-TOP:]
    figure, axes = style.canvas(1, len(HEADLINES), sharey=True, height_in=1.3 + 0.27 * len(order))
    for axis, (metric, title) in zip(axes, HEADLINES.items(), strict=True):
        part = table[table["metric"] == metric].set_index("key").reindex(order)
        for column, colour in (("low", "#7FB3D5"), ("high", "#1B4F72")):
            axis.barh(range(len(order)), part[column] - part["base"], color=colour, height=0.6, lw=0, alpha=0.9)
        base = part["base"].dropna().iloc[0]
        axis.axvline(0, color="#444444", lw=0.8)
        widest = max(0.02, float(np.nanmax(np.abs(part[["low", "high"]].sub(part["base"], axis=0)))))
        axis.set(xlim=(-widest * 1.15, widest * 1.15), title=f"{title}\n{base:.2f}")
        axis.set_xticks(
            [-round(widest, 2), 0, round(widest, 2)], [f"{-widest:+.2f}", "0", f"{widest:+.2f}"], fontsize=8
        )
    for axis, metric in zip(axes, HEADLINES, strict=True):
        axis.set_xlabel("change of S" if metric == "speedup_max" else "change of F")
    axes[0].set_yticks(range(len(order)), order, fontsize=8)
    # The median: a whole number moves by at least 1.
    swing = abs(float((table["high_value"] / table["value"].replace(0, np.nan) - 1).abs().median()))
    for label, colour in ((f"constant {-swing:.0%}", "#7FB3D5"), (f"constant {swing:+.0%}", "#1B4F72")):
        axes[0].barh([0], [0], color=colour, label=label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2, handlelength=1)
    style.stamp(figure, evidence, node, f"{len(order)} of {table['key'].nunique()} constants, largest first")
    return figure


def finding_tornado(rows: pd.DataFrame) -> style.Finding:
    """For each headline figure the constant it hangs on most, and by how much."""
    parts = []
    for metric, title in HEADLINES.items():
        part = rows[rows["metric"] == metric]
        change = part[["low", "high"]].sub(part["base"], axis=0).abs().max(axis=1)
        worst = part.loc[change.idxmax()]
        text = f"{title} ({worst['base']:.2f}) moves by up to {change.max():.2f}"
        parts.append(f"{text} when {worst['key']} goes from {worst['low_value']:.3g} to {worst['high_value']:.3g}")
    return style.Finding("; ".join(parts) + ".")


def oracles(node: str, suite: str = "conccl30") -> pd.DataFrame:
    """Closed-form oracles of the model, evaluated here on a suite: largest relative error, and whether each holds."""
    machine = load_node(node)
    scenarios = load_suite(suite, machine.ranks)
    gemm, collective = kernels.batch(scenarios, machine)
    times = {name: predict(gemm, collective, machine, how) for name, how in STRATEGIES.items()}
    nothing = Mechanisms(**dict.fromkeys(MECHANISMS, False))
    worst: dict[str, float] = dict.fromkeys(("max", "blame", "loop", "link", "thrash", "order"), 0.0)
    slow = {"link": machine.with_constant("interference.requestor_thrash", 0.0), "thrash": machine}
    turned = kernels.batch(scenarios[::-1], machine)
    for name, how in STRATEGIES.items():
        result = times[name]
        longer = np.maximum(result.gemm_alone_s, result.collective_alone_s)
        free = predict(gemm, collective, machine, how, on=nothing)
        lost = sum(blame_s(gemm, collective, machine, how).values())
        run = fluid.run(result.law.work, result.law.delay_s, [[], [0], []], result.law)
        _note(worst, "max", free.time_s, longer)
        _note(worst, "blame", longer + lost, result.time_s)
        _note(worst, "loop", run.end_s.max(-1), result.time_s)
        _note(worst, "order", predict(*turned, machine, how).time_s[::-1], result.time_s)
        for key, before in slow.items():
            after = before.with_constant("link.dma_gbs", before.link.dma_gbs / 2)
            after = after.with_constant("link.cu_gbs", before.link.cu_gbs / 2)
            slower = predict(gemm, collective, after, how).time_s / predict(gemm, collective, before, how).time_s
            worst[key] = max(worst[key], float((1 - slower).max()))
    both = sharing.waterfill(np.ones((2, 1)), 1.0)
    time_s = fluid.run(np.ones((1, 2)), np.zeros((1, 2)), [[], []], lambda running: running * both.T / both.max() * 0.5)
    worst["sum"] = abs(float(time_s.end_s.max()) - 2.0)
    steps = np.arange(machine.gpu.cus_step, machine.gpu.cus + 1, machine.gpu.cus_step)
    curve = np.stack([kernels.compute_time_s(gemm, cus, machine) for cus in steps])
    worst["cus"] = float(np.maximum(curve[1:] / curve[:-1] - 1, 0).max()) if len(steps) > 1 else 0.0
    what = {
        "max": "with every mechanism off, the time is max(Tg, Tc)",
        "sum": "two kernels that need one whole resource take Tg + Tc",
        "blame": "the blame of all mechanisms sums to the lost time",
        "loop": "the closed form and the event loop agree",
        "cus": "more compute units never slow a GEMM's matrix work",
        "link": "without requestor thrash, a link at half its rate never speeds anything up",
        "thrash": "with it, likewise (a memory-bound GEMM gains while a collective holds CUs)",
        "order": "the order of scenarios is irrelevant",
    }
    rows = [{"oracle": text, "largest_error": worst[key], "holds": worst[key] <= 1e-6} for key, text in what.items()]
    return pd.DataFrame(rows)


def _note(worst: dict[str, float], key: str, found: np.ndarray, wanted: np.ndarray) -> None:
    worst[key] = max(worst[key], float(np.abs(found / wanted - 1).max()))


def finding_oracles(table: pd.DataFrame) -> style.Finding:
    """How many oracles hold; names those that do not, with the size of the error."""
    broken = table[~table["holds"]]
    text = f"{int(table['holds'].sum())} of {len(table)} oracles hold."
    for row in broken.itertuples():
        text += f" **Does not hold** (error {row.largest_error:.2%}): {row.oracle}."
    return style.Finding(text)
