"""The copies that one rank issues for a collective, as rows of a transfer plan."""

from __future__ import annotations

from functools import lru_cache

from c3lib.errors import C3Error
from c3lib.transfer.builders import build_plan
from c3lib.transfer.plan import LOCAL, Copy


@lru_cache(maxsize=4096)
def even_copies(kind: str, nbytes: int, ranks: int, rank: int) -> tuple[Copy, ...]:
    """What ``rank`` pushes in the flat plan of a collective of ``nbytes`` (as :func:`build_plan` takes it).

    Push, not pull: writes over NVLink need no answer, and only the output has to be open to peers.
    """
    plan = build_plan(kind, nbytes, ranks, topology="switch", mode="push")
    return tuple(copy for copy, issuer in zip(plan, plan.issuer, strict=True) if issuer == rank)


def uneven_copies(rank: int, sends: list[list[int]], receives: list[list[int]], names: list[int]) -> tuple[Copy, ...]:
    """What ``rank`` pushes in an all-to-all of blocks of any size.

    ``sends[r][p]`` are the bytes rank r sends to rank p, ``receives[p][r]`` those rank p expects of rank r; ``names``
    what sentences call the ranks. Raises :class:`C3Error` when these two differ for any pair, on all ranks alike.
    """
    ranks = len(sends)
    for src in range(ranks):
        for dst in range(ranks):
            if sends[src][dst] != receives[dst][src]:
                raise C3Error(
                    f"output_split_sizes: rank {names[dst]} expects {receives[dst][src]} bytes of rank {names[src]}, "
                    f"whose input_split_sizes send it {sends[src][dst]}"
                )
    own = sends[rank]
    return tuple(
        Copy(
            step=0,
            src_rank=rank,
            src_offset=sum(own[:dst]),
            dst_rank=dst,
            dst_offset=sum(receives[dst][:rank]),
            nbytes=own[dst],
            engine=LOCAL if dst == rank else (dst - rank) % ranks - 1,
        )
        for dst in range(ranks)
        if own[dst]
    )
