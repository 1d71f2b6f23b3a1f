"""NCCL as a baseline: a transport that runs a plan's collective by NCCL.

Its variants: see :data:`VARIANTS`. Those with windows take only memory of :meth:`Clique.allocate`: give it to the
buffers as their ``room``, ``Buffers(cudas, plan, room=clique.allocate)``.
"""

from __future__ import annotations

from c3lib.cuda.buffers import Buffers
from c3lib.cuda.nccl_clique import VARIANTS, WINDOWED, Clique, addresses
from c3lib.cuda.streams import Streams, new_stream
from c3lib.errors import C3Error
from c3lib.transfer import POISON

__all__ = ["SHORT_NBYTES", "VARIANTS", "WINDOWED", "Clique", "Nccl"]

SHORT_NBYTES = 16
"""Bytes by which each rank's count is too small in the negative control."""


class Nccl:
    """The collective of a plan by NCCL: a transport, named by its clique's variant.

    The first run connects peers, which would wait for ever behind a shut gate: it is done here, on the buffers
    themselves, and what it received is poisoned again. So prepare the buffers after this, not before.

    ``in_place``: a rank's own shard stays where it is. An all-gather then sends out of the receive buffer; an
    all-to-all is made of sends and receives among peers, as NCCL's own copies a rank's own block too.

    ``drop``: the negative control. NCCL leaves no copy out, so every rank's count is 16 bytes too small instead,
    whichever copy ``drop`` names: in place, the ends of the blocks stay poisoned; else blocks lie shifted too.

    Raises:
        C3Error: another number of ranks than the clique has, another collective, unequal shards, an all-to-all in
            place with zero CTAs (NCCL's copy engines know only ``ncclAlltoAll``), a refusal of NCCL.
    """

    def __init__(self, clique: Clique, buffers: Buffers, *, in_place: bool = True, drop: int | None = None):
        plan, ranks = buffers.plan, len(clique.cudas)
        self.name, self.clique, self.buffers, self.in_place = clique.variant, clique, buffers, in_place
        if plan.ranks != ranks or plan.topology == "host":
            raise C3Error(f"{plan}: {self.name} moves bytes among {ranks} GPUs, a rank on each")
        if plan.kind not in ("all-gather", "all-to-all"):
            raise C3Error(f"{plan}: {self.name} knows 'all-gather' and 'all-to-all', not {plan.kind!r}")
        if plan.nbytes % ranks or not plan.nbytes:
            raise C3Error(f"{plan}: {self.name} needs equal shards, so a number of bytes that {ranks} divides")
        if plan.kind == "all-to-all" and in_place and self.name == "nccl_zero_cta":
            raise C3Error(f"{plan}: {self.name} copies a rank's own block too: use in_place=False")
        self._shard = plan.nbytes // ranks
        self._count = self._shard if drop is None else max(self._shard - SHORT_NBYTES, 0)
        self._sends, self._receives = addresses(buffers.send), addresses(buffers.receive)
        if plan.kind == "all-gather" and in_place:
            self._sends = tuple(start + rank * self._count for rank, start in enumerate(self._receives))
        if clique.windowed:
            clique.register(buffers.receive)
            clique.register(buffers.send)
        self._open = clique.windowed
        self._connect()

    def _connect(self) -> None:
        streams = [new_stream(cuda) for cuda in self.clique.cudas]
        self.enqueue(streams)
        for stream in streams:
            stream.sync()
        for cuda, tensor in zip(self.clique.cudas, self.buffers.receive, strict=True):
            tensor.fill_(POISON)
            cuda.torch.cuda.synchronize(cuda.index)

    def ready(self) -> None:
        """Nothing to do."""

    def restart(self, streams: Streams) -> None:
        """Nothing to do."""

    def enqueue(self, streams: Streams) -> None:
        """The collective, on one stream of cuda.core a rank; returns before it runs."""
        handles = [int(stream.handle) for stream in streams]
        if self.buffers.plan.kind == "all-gather":
            self.clique.all_gather(self._sends, self._receives, self._count, handles)
        elif self.in_place:
            self.clique.exchange(self._sends, self._receives, self._shard, self._count, handles)
        else:
            self.clique.all_to_all(self._sends, self._receives, self._count, handles)

    def close(self) -> None:
        """Take the windows back; they keep the buffers' memory until then. A second time does nothing."""
        if self._open:
            self._open = False
            self.clique.unregister(self.buffers.receive)
            self.clique.unregister(self.buffers.send)
