"""Figure 6 of arXiv 2412.14335: who uses the last-level cache."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.isolated import suite_batch
from c3lib.figures.reported import elsewhere, reported
from c3lib.model import kernels


def cache_rows(node: str, suite: str = "conccl30") -> pd.DataFrame:
    """Traffic into the last-level cache over its peak bandwidth, for each kernel of a suite run alone.

    GEMM: traffic beyond L2 over its time. Collective: bytes read and written over its time with the default CUs.
    """
    machine, scenarios, gemm, collective = suite_batch(node, suite)
    peak = machine.gpu.llc_peak_gbs * 1e9
    gemm_share = gemm.beyond_l2_bytes / kernels.gemm_time_s(gemm, machine.gpu.cus, machine) / peak
    moved = collective.sent_bytes * kernels.BYTES_PER_LINK_BYTE
    coll_share = moved / kernels.library_time_s(collective, machine) / peak
    frame = pd.DataFrame(
        {
            "kernel": [style.SHORT[item.gemm.bound(machine.gpu)] for item in scenarios]
            + [style.SHORT[item.collective.kind] for item in scenarios],
            "case": [str(item.gemm) for item in scenarios] + [str(item.collective.nbytes) for item in scenarios],
            "share": np.concatenate([gemm_share, coll_share]),
        }
    )
    frame = frame.drop_duplicates(["kernel", "case"]).reset_index(drop=True)
    return frame.assign(node=node, evidence="modelled", relative=frame["share"] / frame["share"].max())


@style.styled
def cache_use(rows: pd.DataFrame) -> Figure:
    """Fig. 6: last-level cache bandwidth used by AG, A2A, CB and MB kernels, relative to the heaviest user."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    colours = {
        "AG": style.KIND["all-gather"],
        "A2A": style.KIND["all-to-all"],
        "CB": style.BOUND["compute"],
        "MB": style.BOUND["memory"],
    }
    present = [name for name in colours if name in rows["kernel"].values]
    figure, axis = style.canvas(height_in=2.9)
    for place, name in enumerate(reversed(present)):
        values = rows.loc[rows["kernel"] == name, "relative"]
        mean = values.mean()
        axis.barh(place, mean, height=0.55, color=colours[name], alpha=0.35, lw=0)
        axis.plot(values, np.full(len(values), place), color=colours[name], **style.MODELLED)
        share = rows.loc[rows["kernel"] == name, "share"].mean()
        axis.text(max(values.max(), mean) + 0.02, place, f"mean {share:.0%} of peak", va="center", color=colours[name])
    names = {"AG": "all-gather (AG)", "A2A": "all-to-all (A2A)", "CB": "compute-bound GEMM", "MB": "memory-bound GEMM"}
    axis.set_yticks(range(len(present)), [names[name] for name in reversed(present)])
    axis.set(xlim=(0, 1.28), xlabel="last-level cache traffic, relative to the heaviest kernel (1.0)")
    axis.set_xticks(np.linspace(0, 1, 6))
    style.stamp(figure, evidence, node, f"{len(rows)} kernels, bar: mean")
    return figure


def finding_cache(rows: pd.DataFrame) -> style.Finding:
    """The order of the four kinds, and whether it is the reported one (AG low, A2A moderate, MB highest)."""
    node = rows["node"].iloc[0]
    means = rows.groupby("kernel")["share"].mean().sort_values()
    order = " < ".join(f"{name} {share:.0%}" for name, share in means.items())
    text = f"Mean share of peak last-level cache bandwidth: {order}."
    if reported(node):
        highest = "agrees" if means.index[-1] == "MB" else f"**fails: {means.index[-1]} is highest here**"
        apart = means.get("A2A", np.nan) / means.get("AG", np.nan)
        moderate = (
            "agrees" if apart > 1.1 else f"**fails: A2A is {apart:.2f} times AG here, as both move the same bytes**"
        )
        text += f" Reported without numbers: memory-bound GEMMs highest ({highest}); A2A above AG ({moderate})."
    return style.Finding(text + elsewhere(node))
