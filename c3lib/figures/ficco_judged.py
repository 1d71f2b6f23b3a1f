"""The model against schedules that ran: predicted over measured time, from constants and with lanes' times given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.ficco import SCHEDULES
from c3lib.figures import style
from c3lib.figures.ficco_measured import LARGE, passes_on, read
from c3lib.figures.judged import NAME
from c3lib.figures.measured import percent
from c3lib.judge import WAYS
from c3lib.judge_schedules import TABLE, TARGET, judge, scorecard, verdict
from c3lib.measured import FOLDER, TRANSPORTS
from c3lib.workload import format_size

TITLE = {"isolated": "each lane's own time given", "constants": "from constants alone"}


def judged(machine: str, folder: Path = FOLDER) -> pd.DataFrame | style.Finding:
    """Every prediction beside what was measured (:func:`c3lib.judge_schedules.judge`), or what to run to have one."""
    there = read(machine, TABLE, folder)
    return there if isinstance(there, style.Finding) else judge(machine, folder)


@style.styled
def errors(rows: pd.DataFrame) -> Figure:
    """The model's time over the measured one, problem by problem: a panel a way to judge and a transport."""
    evidence, mine = style.shown(rows.assign(verified=True)), rows[rows["predictor"] == "model"]
    there = [name for name in TRANSPORTS if name in mine["transport"].values]
    figure, axes = style.canvas(
        len(WAYS), len(there), sharex=True, sharey="row", height_in=1.5 + 1.75 * len(WAYS), squeeze=False
    )
    for line, way in zip(axes, WAYS, strict=True):
        for axis, transport in zip(line, there, strict=True):
            part = mine[(mine["way"] == way) & (mine["transport"] == transport)]
            axis.axhspan(1 - TARGET, 1 + TARGET, color=style.FAINT, lw=0, zorder=0)
            axis.axhline(1, color="#444444", lw=0.9, zorder=1)
            for place, name in enumerate(SCHEDULES):
                own = part[part["schedule"] == name].sort_values(["piece_bytes", "problem"])
                x, small = place + np.linspace(-0.3, 0.3, len(own)), own["piece_bytes"].to_numpy() < LARGE
                ratio = (1 + own["error"]).to_numpy()
                look = {"color": style.SCHEDULE[name], **style.MODELLED, "ms": 4.5}
                axis.plot(x[~small], ratio[~small], **look)
                axis.plot(x[small], ratio[small], **{**look, "marker": "x", "mew": 1.4})
                text = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 8}
                axis.text(place, 1.0, f"{own['error'].abs().mean():.0%}", color=style.SCHEDULE[name], **text)
            mean = part.loc[part["schedule"] != "serial", "error"].abs().mean()
            axis.set_title(f"{TRANSPORTS[transport]}: {mean:.1%} off", fontsize=9)
        ratio = 1 + mine.loc[mine["way"] == way, "error"]
        line[0].set_ylim(min(0.8, ratio.min()) - 0.03, max(1.2, ratio.max()) + 0.09)
        line[0].set_ylabel(f"modelled / measured,\n{TITLE[way]}", fontsize=8.5)
    for axis in axes[-1]:
        names = list(SCHEDULES)
        axis.set_xticks(range(len(names)), names, rotation=38, ha="right", rotation_mode="anchor", fontsize=8)
        for label in axis.get_xticklabels():
            label.set(color=style.SCHEDULE[label.get_text()], weight="bold")
    n = f"{len(mine) // len(WAYS)} cases"
    note = f"band: ±{TARGET:.0%}; x: pieces below {format_size(LARGE)}; titles: all but serial"
    style.stamp(figure, f"modelled against {evidence}", rows["node"].iloc[0], n, note)
    return figure


@passes_on
def finding(rows: pd.DataFrame) -> style.Finding:
    """Errors of the model beside the naive rules, both ways; the target; where it is worst."""
    style.shown(rows.assign(verified=True))
    scores = scorecard(rows).set_index(["way", "group", "predictor"])
    asked = verdict(scores.reset_index())
    parts = []
    for way, title in TITLE.items():
        whole = scores.loc[(way, "overlapped", "model")]
        naive = [f"{NAME[name]} {scores.loc[(way, 'overlapped', name), 'mean']:.1%}" for name in ("max", "sum")]
        parts.append(
            f"**{title[0].upper()}{title[1:]}, the model misses {whole['configurations']} measured times of overlapped "
            f"schedules by {whole['mean']:.1%}** on average ({percent(whole['bias'], 1)} on balance; "
            f"{', '.join(naive)}); worst: {whole['worst_case']}, {whole['worst']:.0%}"
        )
    met = "met" if asked["met"] else "**missed**"
    head = f"(modelled against measured) Aimed at: at most {asked['target']:.0%} with lanes given; {met}. "
    own = scores.xs(("constants", "model"), level=("way", "predictor"))
    by = own[own["by"] == "schedule"]["mean"]
    tail = f"From constants, best on {by.idxmin()} ({by.min():.1%}), worst on {by.idxmax()} ({by.max():.1%})"
    return style.Finding(head + ".  \n".join([*parts, tail]) + ".")


def shown_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The scorecard as a reader wants it: errors in percent."""
    scores = scorecard(rows)
    numbers = ["mean", "median", "p90", "bias", "worst"]
    return scores.assign(**(scores[numbers] * 100).round(1)).rename(columns={name: f"{name} %" for name in numbers})
