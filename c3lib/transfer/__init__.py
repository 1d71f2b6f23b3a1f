"""Transfer plans: a collective as a list of copies that every executor (host, model, CUDA, HSA) runs alike.

``plan`` the format, ``definition`` what each collective means, ``check`` whether a plan is sound, ``exactness`` the
host executor and the byte proof. Builders stand in :mod:`c3lib.transfer.builders`; conventions are told in
``docs/transfer_plans.md``.
"""

from c3lib.transfer.check import check_plan
from c3lib.transfer.definition import KINDS, Piece, buffer_sizes, pieces, shards
from c3lib.transfer.exactness import (
    POISON,
    Mismatch,
    Proof,
    Verification,
    execute_on_host,
    expected,
    pattern,
    prove,
    send_buffers,
    verify,
)
from c3lib.transfer.plan import (
    HOST_IN,
    HOST_OUT,
    LOCAL,
    MODES,
    MOST_NBYTES,
    RECEIVE,
    SEND,
    TOPOLOGIES,
    Copy,
    TransferPlan,
    plan_links,
    require_int,
    require_one_of,
)

__all__ = [
    "HOST_IN",
    "HOST_OUT",
    "KINDS",
    "LOCAL",
    "MODES",
    "MOST_NBYTES",
    "POISON",
    "RECEIVE",
    "SEND",
    "TOPOLOGIES",
    "Copy",
    "Mismatch",
    "Piece",
    "Proof",
    "TransferPlan",
    "Verification",
    "buffer_sizes",
    "check_plan",
    "execute_on_host",
    "expected",
    "pattern",
    "pieces",
    "plan_links",
    "prove",
    "require_int",
    "require_one_of",
    "send_buffers",
    "shards",
    "verify",
]
