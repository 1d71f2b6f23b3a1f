"""Which SDMA engine of each GPU reaches which peer: chosen from what the driver accepts, then proven one by one.

A copy that asks for an engine may get a kernel on compute units instead, and is told that all is well. So every engine
that is chosen is proven: while a copy is held back on it, the engine must leave the mask of idle ones, and afterwards
be in it again. The bytes are compared: an engine that says it is done may have moved nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Collection, Iterator, Sequence

from c3lib.amd import driver
from c3lib.amd.agents import Gpu
from c3lib.amd.parcel import Parcel
from c3lib.amd.runtime import Runtime
from c3lib.errors import C3Error
from c3lib.transfer import MODES, require_one_of

LIMIT_S = 1.0
"""How long a proof waits for an engine; what hangs for longer than this on 64 bytes is of no use."""

PROOF_NBYTES = 64

_BACK_S = 0.25  # a copy is done a little before its engine is idle; after this long it was not the engine's copy
_NOT_BACK = "a kernel on compute units did the copy: the engine never became idle again"


@dataclass(frozen=True)
class EngineProof:
    """What became of a copy held back on ``engine`` of GPU ``copier``, to or from GPU ``peer``.

    The masks are of engines idle before, while it was held and after it: bit k is engine k. ``failure`` says why
    nothing is proven; it is empty where the engine is.
    """

    copier: int
    peer: int
    engine: int
    before: int
    held: int
    after: int
    failure: str

    @property
    def proven(self) -> bool:
        """True when the copy ran on the engine."""
        return not self.failure

    @property
    def alone(self) -> bool:
        """True when nothing but the engine's own bit went and came back."""
        return self.held == self.before & ~(1 << self.engine) and self.after == self.before

    @property
    def masks(self) -> str:
        """The three masks, in hexadecimal."""
        return f"({self.before:#x} before, {self.held:#x} held, {self.after:#x} after)"

    def __str__(self) -> str:
        outcome = f"failed: {self.failure}" if self.failure else "proven"
        return f"engine {self.engine} of GPU {self.copier} for GPU {self.peer} {outcome} {self.masks}"


def prove_engine(
    runtime: Runtime, dst: Gpu, src: Gpu, engine: int, limit_s: float = LIMIT_S, mode: str = "push"
) -> EngineProof:
    """Hold a tiny copy from ``src`` to ``dst`` on an engine of ``src`` (push) or of ``dst`` (pull), and look at it.

    The same engine brings the bytes there from the host, and back to be compared. Ends within five times ``limit_s``,
    as a rule in one. Nothing else may use the engine. What a hanging engine may still touch is given up. Raises
    :class:`C3Error` only for lack of memory; whatever the engine does is in the answer.
    """
    copier, peer = (src, dst) if require_one_of("mode", mode, MODES) == "push" else (dst, src)
    bit = 1 << engine
    before = held = after = 0

    def outcome(failure: str = "") -> EngineProof:
        return EngineProof(copier.index, peer.index, engine, before, held, after, failure)

    def idle() -> int:
        return runtime.idle_engines(peer, copier)

    def settled() -> int:
        """The engines that are idle, once this one is or has had the time for it."""
        until_s = time.monotonic() + min(limit_s, _BACK_S)
        while not (mask := idle()) & bit and time.monotonic() < until_s:
            time.sleep(0.0005)
        return mask

    before = idle()
    if not before & bit:
        return outcome("it is not among the engines that are idle for this peer")
    parcel, gate = Parcel(runtime, dst, src, copier, engine, PROOF_NBYTES), runtime.signal(1)
    try:
        parcel.fill(limit_s)
        held = after = settled()
        if not held & bit:
            return outcome(_NOT_BACK)
        done = parcel.send(gate)
        try:
            held = idle()
        finally:
            gate.set(0)
        parcel.arrive(done, limit_s)
        after = settled()
        if held & bit:
            return outcome("a kernel on compute units did the copy: the engine stayed idle while it was held back")
        if not after & bit:
            return outcome(_NOT_BACK)
        wrong = parcel.wrong(limit_s)
    except C3Error as error:
        after = idle()
        return outcome(str(error).removeprefix("amd: "))
    finally:
        parcel.close()
    return outcome(f"{wrong} of the {PROOF_NBYTES} bytes that it copied are wrong" if wrong else "")


@dataclass(frozen=True)
class Choice:
    """The engine of rank ``copier``'s GPU that copies to or from rank ``peer``.

    ``how``: ``"preferred"`` by the driver, or ``"chosen"`` by us among the mask ``accepted``. ``proof`` numbers GPUs,
    not ranks.
    """

    copier: int
    peer: int
    engine: int
    how: str
    accepted: int
    proof: EngineProof


@dataclass(frozen=True)
class Engines:
    """The engines for all pairs of ranks, one :class:`Choice` an ordered pair.

    ``mode`` says who copies: the source ("push") or the destination ("pull"). ``dropped`` has a sentence for each
    engine that failed its proof and is not used.
    """

    mode: str
    choices: tuple[Choice, ...]
    dropped: tuple[str, ...]
    ranks: int

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def of(self, copier: int, peer: int, lane: int | None = None) -> int:
        """Number of the engine that rank ``copier`` uses for rank ``peer``.

        ``lane`` is the engine that a plan names, counted from 0: it stands for the engine of the peer ``lane + 1``
        ranks on, so that a plan of fewer engines than peers has several peers share one. Without, each has its own.

        Raises:
            C3Error: the engine that the plan has two peers share cannot reach this one.
        """
        named = peer if lane is None else (copier + 1 + lane % (self.ranks - 1)) % self.ranks
        engine = self._choice(copier, named).engine
        if not self._choice(copier, peer).accepted >> engine & 1:
            raise C3Error(f"amd: engine {engine} of rank {copier} cannot reach rank {peer}; give each peer an engine")
        return engine

    def _choice(self, copier: int, peer: int) -> Choice:
        return self.choices[copier * (self.ranks - 1) + peer - (peer > copier)]

    @property
    def path(self) -> str:
        """The path that copies take and how that is known, in one line, as a row of data says it.

        The masks of the proofs are all in it: those that say more than that an engine's own bit went and came back are
        written out.
        """
        who = "source" if self.mode == "push" else "destination"
        hows = [f"{count} {how}" for how, count in Counter(c.how for c in self).most_common()]
        idle = "/".join(f"{mask:#x}" for mask in sorted({c.proof.before for c in self}))
        pairs = " ".join(f"{c.copier}>{c.peer}:{c.engine}{'' if c.proof.alone else c.proof.masks}" for c in self)
        dropped = f"; {len(self.dropped)} failed and are not used" if self.dropped else ""
        return (
            f"SDMA engines of the {who} ({', '.join(hows)}): each left the mask of idle ones ({idle}) while a copy was "
            f"held on it and was back after{dropped}; copier>peer:engine {pairs}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """One dict an ordered pair: ranks, engine, who copies, how it was come by, the masks."""
        return [
            {
                "copier": c.copier, "peer": c.peer, "engine": c.engine, "mode": self.mode, "how": c.how,
                "accepted": c.accepted,
                **{name: value for name, value in asdict(c.proof).items() if name in ("before", "held", "after")},
            }
            for c in self
        ]  # fmt: skip


def choose_engines(runtime: Runtime, gpus: Sequence[Gpu], mode: str = "push", limit_s: float = LIMIT_S) -> Engines:
    """An engine for every ordered pair of ``gpus`` (one GPU a rank), each proven. Call it while nothing is copied.

    The driver's preferred engine is taken where it names one; else each GPU reaches each peer by another engine, even
    ones first, as far as there are enough. An engine that fails is not tried again for another peer.

    Raises:
        C3Error: the environment turns engines off, GPUs differ in their engines, or a peer has no proven engine left.
    """
    driver.require_engines()
    require_one_of("mode", mode, MODES)
    kinds = {(gpu.name, gpu.host_engines, gpu.peer_engines) for gpu in gpus}
    if len(kinds) > 1:
        listed = "; ".join(f"{name} with {host} host and {peer} peer engines" for name, host, peer in sorted(kinds))
        raise C3Error(f"amd: these GPUs differ in their engines ({listed}); use GPUs of one kind and partition mode")
    choices: list[Choice] = []
    dropped: dict[tuple[int, int], EngineProof] = {}
    for copier, gpu in enumerate(gpus):
        peers = [peer for peer in range(len(gpus)) if peer != copier]
        accepted = {peer: runtime.idle_engines(gpus[peer], gpu) for peer in peers}
        preferred = {peer: runtime.preferred_engine(gpus[peer], gpu) for peer in peers}
        first = {peer: candidates(accepted[peer], preferred[peer], copier ^ peer)[:1] for peer in peers}
        used: set[int] = set()
        for peer in peers:
            others = used.union(*(first[other] for other in peers if other != peer))
            for engine in candidates(accepted[peer], preferred[peer], copier ^ peer, others):
                if (copier, engine) in dropped:
                    continue
                ends = (gpus[peer], gpu) if mode == "push" else (gpu, gpus[peer])
                proof = prove_engine(runtime, *ends, engine, limit_s, mode)
                if proof.proven:
                    how = "preferred" if preferred[peer] >> engine & 1 else "chosen"
                    choices.append(Choice(copier, peer, engine, how, accepted[peer], proof))
                    used.add(engine)
                    break
                dropped[copier, engine] = proof
            else:
                tried = _grouped([proof for (rank, _), proof in dropped.items() if rank == copier])
                raise C3Error(
                    f"amd: {gpu} has no SDMA engine that reaches {gpus[peer]}: {tried or 'none is idle for it'}"
                )
    return Engines(mode, tuple(choices), tuple(map(str, dropped.values())), len(gpus))


def _grouped(proofs: Sequence[EngineProof], most: int = 3) -> str:
    """Failed proofs in one sentence: how many failed of the same, and the first of them; the commonest failure first.

    One cause often stops every engine of a GPU, and the same words fourteen times would hide it.
    """
    alike: dict[str, list[EngineProof]] = {}
    for proof in proofs:
        alike.setdefault(proof.failure, []).append(proof)
    groups = sorted(alike.values(), key=len, reverse=True)
    said = [f"{len(group)} engines fail alike, the first: " * (len(group) > 1) + str(group[0]) for group in groups]
    rest = sum(map(len, groups[most:]))
    return "; ".join(said[:most] + ([f"{rest} more failed otherwise"] if rest else []))


def candidates(accepted: int, preferred: int, distance: int, others: Collection[int] = ()) -> list[int]:
    """Engines to try for a peer, best first: preferred ones, then those not of ``others``, for other peers; even first.

    ``distance`` is the exclusive or of the two ranks, another one for each peer: with 14 peer engines numbered from 2
    it makes ``2 * distance`` come first, so that the two ends of a link use engines of one number.
    """
    listed = [engine for engine in range(accepted.bit_length()) if accepted >> engine & 1]
    listed.sort(key=lambda engine: engine % 2)
    start = (distance - 1) % len(listed) if listed else 0
    turned = listed[start:] + listed[:start]
    return sorted(turned, key=lambda engine: (not preferred >> engine & 1, engine in others))
