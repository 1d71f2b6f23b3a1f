"""A constant as the tables give it, and the tables reduced to what the derivations ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from c3lib.errors import C3Error
from c3lib.hardware import Node

OWN_KERNEL = "sm_kernel"
KERNEL = ["transport", "batched", "blocks", "direction", "total_bytes"]


@dataclass(frozen=True)
class Reading:
    """``key`` and the value's unit as in the node's file; ``source``: the sentence that stands with it there."""

    key: str
    value: float
    source: str


@dataclass(frozen=True)
class Tables:
    """Verified rows of a node: medians of repetitions, seconds.

    ``gemms`` and ``transfers`` are each alone; ``beside`` has the two at once, with ``gemm_alone_s``,
    ``transfer_alone_s``. ``sent_bytes`` leave one GPU in one direction. ``library``: the transport that stands for the
    vendor's library, NCCL's default or else our own SM kernel.
    """

    node: Node
    device: str
    about: Mapping[str, Any]
    gemms: pd.DataFrame
    transfers: pd.DataFrame
    beside: pd.DataFrame
    library: str

    @classmethod
    def of(cls, node: Node, isolated: pd.DataFrame, order: pd.DataFrame, about: Mapping[str, Any]) -> Tables:
        """The tables as they were read. Raises :class:`C3Error` for a row that failed its byte check."""
        _require_verified("isolated", isolated)
        _require_verified("order", order)
        gemms = _medians(isolated[isolated["transport"] == "none"], ["gemm", "bound", "partition", "sms_granted"])
        transfers = _alone(isolated, node)
        whole = order[(order["transport"] == "none") & (order["sms_asked"] == 0)]
        pairs = order[(order["transport"] != "none") & (order["gemm"] != "none")]
        beside = _medians(pairs, ["gemm", "bound", "collective", *KERNEL, "first", "high_priority", "sms_granted"])
        gemm_s = whole.groupby("gemm")["gemm_s"].median().rename("gemm_alone_s")
        transfer_s = _alone(order, node).groupby(KERNEL)["transfer_s"].median().rename("transfer_alone_s")
        beside = beside.join(gemm_s, on="gemm").join(transfer_s, on=KERNEL)
        library = "nccl" if (transfers["transport"] == "nccl").any() else OWN_KERNEL
        device = f"{node.ranks if node.topology != 'host' else 1}x {about.get('device', node.name)}"
        return cls(node, device, about, gemms, transfers, beside.assign(sent_bytes=_sent(beside, node)), library)


def _require_verified(table: str, rows: pd.DataFrame) -> None:
    """Refused and not left out: where one row is wrong, the others were made by what made it."""
    failed = rows[~rows["verified"].eq(True).astype(bool)]  # compared with True: an empty value is no verification
    for row in failed.head(1).itertuples():
        raise C3Error(
            f"constants: {len(failed)} of {len(rows)} rows of the table {table} failed their check, so nothing is "
            f"derived; the first: gemm {row.gemm}, collective {row.collective}, transport {row.transport}"
        )


def _alone(rows: pd.DataFrame, node: Node) -> pd.DataFrame:
    """Transfers alone."""
    rows = rows[(rows["transport"] != "none") & (rows["gemm"] == "none")]
    by = ["collective", "copies", *KERNEL]
    found = _medians(rows, by).join(rows.groupby(by).size().rename("repetitions"), on=by)
    return found.assign(sent_bytes=_sent(found, node))


def _medians(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    return rows.groupby(by, sort=True)[["gemm_s", "transfer_s", "region_s"]].median().reset_index()


def _sent(rows: pd.DataFrame, node: Node) -> pd.Series:
    """As :attr:`c3lib.workload.Collective.sent_bytes`, of every row."""
    return (node.ranks - 1) * np.ceil(rows["total_bytes"].astype(float) / node.ranks)
