"""Small tables of two GPUs by simple laws, built to the schemas; see :mod:`measured_tables` for those of one GPU."""

import measured_tables as made
import pandas as pd

from c3lib.measured import schemas
from c3lib.schema import RESULTS

NODE, SUITE = "h200_2", "conccl30_nvlink"
NBYTES = 2**29
MOVE_S = 1e-3
WAYS = {  # (transport, in place, blocks): fraction of ideal with the GEMM first, with the transfer first, wire bytes
    ("copy_engine", True, 0): (0.9, 0.9, 1.09),
    ("sm_kernel", True, 8): (-0.3, 0.6, 1.4),
    ("sm_kernel", True, 32): (0.1, 0.5, 1.2),
    ("nccl", True, 24): (0.05, 0.7, 1.25),
    ("nccl", False, 32): (0.0, 0.65, 1.3),
    ("nccl_zero_cta", True, 0): (0.88, 0.87, 1.08),
    ("nccl_zero_cta", False, 0): (0.02, 0.02, 1.1),
}
"""All of them for the all-gather; the all-to-all has no zero CTAs in place."""

_FREE, _HELD = "ended while all 132 SMs were held", "did not end while all 132 SMs were held"
PATHS = {
    ("copy_engine", True): f"copy engine: {_FREE}",
    ("sm_kernel", True): f"SM kernel: 8 blocks reported from 8 SMs; {_HELD}",
    ("nccl", True): f"ncclDevKernel_X x2 of 24 blocks (activity records); {_HELD}",
    ("nccl", False): f"ncclDevKernel_X x2 of 32 blocks (activity records); {_HELD}",
    ("nccl_zero_cta", True): f"Memcpy PtoP x2 (activity records); {_FREE}",
    ("nccl_zero_cta", False): f"Memcpy DtoD x2, Memcpy PtoP x2 (activity records); {_HELD}",
}


def ways(kind):
    return {key: law for key, law in WAYS.items() if kind == "all-gather" or key[:2] != ("nccl_zero_cta", True)}


def _how(transport, blocks):
    return {**made.setting(blocks=blocks, transport=transport)}


def transports(jitter=0.01):
    """Each way takes :data:`MOVE_S` alone, each GEMM what it takes; beside each other they reach what the law says."""
    rows = []
    for gemm, (_, gemm_s) in made.GEMMS.items():
        for kind in ("all-gather", "all-to-all"):
            for repetition in range(made.REPEATS):
                alone = made.row("transports", gemm, made.NONE, repetition, gemm_s=gemm_s, jitter=jitter)
                rows.append({**alone, "in_place": True, "path": "no transfer"})
                for (transport, in_place, blocks), law in ways(kind).items():
                    more = {"in_place": in_place, "path": PATHS[transport, in_place]}
                    both = made.pair("transports", gemm, _how(transport, blocks), NBYTES, repetition, jitter=jitter)
                    for first, reached in zip(("gemm", "transfer"), law, strict=False):
                        rows.append(_beside(both[2], gemm_s, reached, jitter) | {"first": first} | more)
                    move = made.row(
                        "transports", "none", _how(transport, blocks), repetition, nbytes=NBYTES, copies=2,
                        transfer_s=MOVE_S, jitter=jitter,
                    )  # fmt: skip
                    rows.append({**move, **more})
                for row in rows:
                    if row["transport"] != "none" and row["repetition"] == repetition and "kind" not in row:
                        row["kind"] = kind
    found = pd.DataFrame(rows)
    found["collective"] = found.pop("kind").fillna("none")
    return schemas()["transports"].validate(found.assign(node=NODE))


def _beside(row, gemm_s, reached, jitter):
    """The row with the region's end so that the pair reaches a fraction of ideal; the transfer ends last."""
    factor = made.spread(row["repetition"], jitter)
    serial_s, longer_s = gemm_s + MOVE_S, max(gemm_s, MOVE_S)
    end_s = serial_s / (1 + reached * (serial_s / longer_s - 1))
    return {**row, "gemm_s": gemm_s * factor, "transfer_s": end_s * factor, "region_s": end_s * factor}


def links(jitter=0.001):
    """Beside a GEMM a way puts a tenth more on the wire than alone; the payload is that of the plan."""
    rows = []
    for kind in ("all-gather", "all-to-all"):
        for (transport, in_place, blocks), (*_, ratio) in ways(kind).items():
            for gemm in ("none", "8192x8192x8192"):
                for repetition in range(3):
                    raw = NBYTES / 2 * (ratio + 0.1 * (gemm != "none")) * made.spread(repetition, jitter)
                    rows.append(
                        {
                            "node": NODE,
                            "evidence": "measured",
                            "gemm": gemm,
                            "collective": kind,
                            "total_bytes": NBYTES,
                            **_how(transport, blocks),
                            "in_place": in_place,
                            "repetition": repetition,
                            "runs": 20,
                            "seconds_per_run": 1e-3,
                            "plan_bytes": NBYTES // 2,
                            "sent_bytes": NBYTES / 2,
                            "received_bytes": NBYTES / 2,
                            "sent_raw_bytes": raw,
                            "received_raw_bytes": raw,
                            "verified": True,
                            "path": PATHS[transport, in_place],
                        }
                    )
    return schemas()["links"].validate(pd.DataFrame(rows))


ROOM = {
    ("nccl", "gemm"): 0.0,
    ("nccl", "transfer"): 0.6,
    ("nccl_unclustered", "gemm"): 0.55,
    ("nccl_unclustered", "transfer"): 0.6,
}
"""Fraction of ideal with an SM left free for each block, by what is first."""


def order(jitter=0.01):
    """NCCL behind a GEMM on fewer SMs finds room only singly; copy engines reach 0.9 with nothing left free."""
    rows = []
    for gemm in made.GEMMS:
        for repetition in range(made.REPEATS):
            more = {"repetition": repetition, "jitter": jitter}
            for first in ("gemm", "transfer"):
                rows += made.pair("order", gemm, made.setting(first=first), NBYTES, reached=0.9, **more)
            for (transport, first), reached in ROOM.items():
                for blocks in (4, 16):
                    how = made.setting(blocks=blocks, withheld=blocks, first=first, transport=transport)
                    rows += made.pair("order", gemm, how, NBYTES, reached=reached, **more)
    return schemas()["order"].validate(pd.DataFrame(rows).assign(node=NODE))


RATES = {"bare_copy": 800.0, "copy_engine": 796.0, "sm_kernel": 700.0, "nccl": 600.0}
"""GB/s at the largest size; each waits 10 us before, bare copies 2 us."""


def isolated(jitter=0.0):
    """All-gathers alone; NCCL takes 2 blocks for the smallest size, 24 for others, and blocks are swept at one."""
    rows = []
    for repetition in range(made.REPEATS):
        for size in (2**14, 2**22, 2**26, 2**29, 2**32):
            for name in RATES:
                blocks = {"sm_kernel": 32, "nccl": 2 if size == 2**14 else 24}.get(name, 0)
                swept = (1, 8, 64) if size == 2**29 and blocks else ()
                for count in (blocks, *swept):
                    seconds = (2e-6 if name == "bare_copy" else 10e-6) + size / RATES[name] / 1e9
                    seconds *= 1 if count == blocks else 2
                    more = {"nbytes": size, "copies": 2, "jitter": jitter}
                    row = made.row("isolated", "none", _how(name, count), repetition, transfer_s=seconds, **more)
                    rows.append({**row, "link_bytes": size})
    return made.table(pd.DataFrame(rows).assign(node=NODE).to_dict("records"), "isolated")


def suite(jitter=0.01, **reached):
    """The suite of one GPU as if NCCL and the links between two GPUs had run it."""
    rows = made.suite(reached, jitter)
    by_sm = rows["transport"] == "sm_kernel"
    rows = rows.assign(node=NODE, suite=SUITE, ranks=2, transport=rows["transport"].mask(by_sm, "nccl"))
    return schemas()["suite"].validate(rows)


def predicted(rows, longer=1.1):
    """What a model would have said of a measured suite whose concurrent times it takes for ``longer`` times as long."""
    one = rows[rows["repetition"] == made.REPEATS // 2].assign(evidence="modelled", backend="model", verified=False)
    end_s = one["concurrent_s"] * longer
    speedup = (one["gemm_alone_s"] + one["collective_alone_s"]) / end_s
    fraction = (speedup - 1) / (one["ideal"] - 1)
    one = one.assign(concurrent_s=end_s, speedup=speedup, fraction_of_ideal=fraction, repetition=0)
    return RESULTS.validate(one[list(RESULTS.columns)].reset_index(drop=True))


def energy():
    """That of one GPU, by NCCL in place of our kernel."""
    rows = made.energy()
    by_nccl = rows["transport"].replace("sm_kernel", "nccl")
    return schemas()["energy"].validate(rows.assign(node=NODE, transport=by_nccl))


STEP_S = {"none": 0.05, "nccl": 0.1, "copy_engine": 0.08}


def fsdp_step(jitter=0.01):
    """Two sizes, the larger twice as long; copy engines save a fifth of a step."""
    rows = []
    for size, tokens in (("half", 2048), ("equal", 1024)):
        for transport, step_s in STEP_S.items():
            for repetition in range(made.REPEATS):
                rows.append(
                    {
                        "node": NODE,
                        "evidence": "measured",
                        "model": "decoder, 8 blocks",
                        "size": size,
                        "layers": 8,
                        "hidden": 6144,
                        "tokens": tokens,
                        "ranks": 2,
                        "parameter_bytes": 7 * 10**9,
                        "block_bytes": 9 * 10**8,
                        "transport": transport,
                        "repetition": repetition,
                        "steps": 3,
                        "step_s": step_s * tokens / 1024 * made.spread(repetition, jitter),
                        "loss": 1.0,
                        **made.PROOF,
                    }
                )
    return schemas()["fsdp_step"].validate(pd.DataFrame(rows))
