"""Small measured tables of finer-grain overlap, built to the schemas from the model's times, off by known factors."""

import pandas as pd
from measured_tables import HEALTH, PROOF

from c3lib.ficco import SCHEDULES
from c3lib.ficco.sets import load_problems
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.measured import schemas
from c3lib.model.losses import loss_rows

NODE = "h200_1"
PROBLEMS = ("g2-r1", "g14-r1", "piece-64KiB")
REPEATS = 5
TRANSPORTS = {"copy_engine": "dma", "sm_kernel": "cu"}


def checked(name, rows):
    """The rows as the table's schema wants them."""
    schema = schemas()[name]
    return schema.validate(pd.DataFrame(rows)[list(schema.columns)])


def schedules(slower=1.05, problems=PROBLEMS):
    """Table ``ficco``: every time is the model's over ``slower``, so that the model is off by ``slower - 1``."""
    node = load_node(NODE)
    chosen = [row for row in load_problems("ficco_host", node.ranks) if row.name in problems]
    model = schedule_rows(node, chosen).set_index(["problem", "transport", "schedule"])
    found = []
    for row in chosen:
        problem = row.problem
        about = {
            "node": NODE,
            "evidence": "measured",
            "problem": row.name,
            "collective": problem.kind,
            "m": problem.m[0],
            "n": problem.n,
            "k": problem.k,
            "dtype": problem.dtype,
            "ranks": problem.ranks,
            "pieces": problem.pieces,
            "piece_bytes": problem.piece_nbytes,
            "received_bytes": problem.received_nbytes(),
            "copies": 7,
            "operations": 7,
            "memory_bytes": 1,
            "step_ends_us": "none",
            **dict.fromkeys(("gemm_start_s", "exchange_start_s", "overlap_s"), 0.0),
            **HEALTH,
            **PROOF,
        }
        for turn in range(REPEATS):
            shaky = (1 + 0.01 * turn) / slower  # the same in all arms of a repetition, so that ratios do not move
            for transport, name in TRANSPORTS.items():
                for schedule in SCHEDULES:
                    told = model.loc[(row.name, name, schedule)]
                    withheld = 0 if schedule == "serial" or name == "dma" else 8
                    arms = {"both": told["time_s"], "exchanges": told["exchange_s"], "kernels": told["gemm_s"]}
                    for lanes, seconds in arms.items():
                        if lanes == "kernels" and name == "cu" and not withheld:
                            continue
                        moves = lanes != "kernels"
                        found.append(
                            about
                            | {"schedule": schedule, "lanes": lanes, "transport": transport if moves else "none"}
                            | {"blocks": 8 if moves and name == "cu" else 0, "sms_withheld": withheld}
                            | {"repetition": turn, "time_s": seconds * shaky}
                            | {"gemm_end_s": seconds * shaky, "exchange_end_s": seconds * shaky}
                        )
    return checked("ficco", found)


def losses(more=0.02, problems=("g1", "g2", "g14")):
    """Table ``ficco_losses``: every loss is the model's and ``more``."""
    node = load_node(NODE)
    chosen = [row for row in load_problems("ficco16", 8) if row.name in problems]
    model = loss_rows(node, chosen)
    about = {"node": NODE, "evidence": "measured", "collective": "all-gather", "dtype": "bf16", **HEALTH, **PROOF}
    found = []

    def add(about_row, what, whole_s, value, transport="none", withheld=0):
        for turn in range(REPEATS):
            found.append(
                about
                | {name: int(about_row[name]) for name in "mnk"}
                | {"problem": about_row["problem"], **what, "transport": transport, "blocks": 8 * (withheld > 0)}
                | {"sms_withheld": withheld, "moved_bytes": 0, "repetition": turn}
                | {"time_s": whole_s * (1 + value) * (1 + 0.01 * turn)}
            )

    alone = {"measured": "gemm", "beside": "nothing"}
    for row in chosen:
        own = model[model["problem"] == row.name]
        cuts = own[(own["loss"] == "decomposition") & (own["operation"] == "gemm")]
        first = cuts.iloc[0]
        add(first, {**alone, "cut": "none", "parts": 1}, first["whole_s"], 0.0)
        value = {("none", 1): 0.0}
        for cut in cuts.to_dict("records"):
            value[cut["axis"], cut["ways"]] = cut["value"] + more
            add(cut, {**alone, "cut": cut["axis"], "parts": cut["ways"]}, cut["whole_s"], cut["value"] + more)
        beside = own[(own["loss"] == "contention") & (own["operation"] == "gemm")]
        for transport, name in TRANSPORTS.items():
            withheld = 8 if name == "cu" else 0
            for axis, ways in (("none", 1), ("m", 8), ("k", 8)):
                part = beside[(beside["transport"] == name) & (beside["axis"] == axis) & (beside["ways"] == ways)].iloc[
                    0
                ]
                whole = first["whole_s"] * (1 + value[axis, ways])
                what = {"measured": "gemm", "beside": "exchange", "cut": axis, "parts": ways}
                add(first, what, whole, part["value"] + more, transport, withheld)
            slowed = own[(own["loss"] == "contention") & (own["operation"] == "exchange") & (own["transport"] == name)]
            slowed = slowed[slowed["axis"] == "none"].iloc[0]
            what = {"measured": "exchange", "beside": "gemm", "cut": "m", "parts": 8}
            add(first, what, 1e-2, slowed["value"] + more, transport, withheld)
    shard = {"problem": "shard-512MiB", "m": 32768, "n": 8, "k": 8192}
    for transport, name in TRANSPORTS.items():
        for cut, parts, lost in (("none", 1, 0.0), ("m", 8, 0.0), ("m", 64, 0.03), ("k", 8, 0.01), ("k", 64, 0.05)):
            what = {"measured": "exchange", "beside": "nothing", "cut": cut, "parts": parts}
            add(shard, what, 1e-2, lost, transport, 8 if name == "cu" else 0)
    return checked("ficco_losses", found)
