"""Masks of compute units: which CUs the kernels of a stream may use, spread evenly over the compute dies (XCDs).

Bit i of a mask belongs to XCD i mod ``xcds`` (on MI300X, 8), by the driver's mapping for GFX 9.4.3: the low 8n bits
are n CUs of *each* XCD, and the low 38 bits are not the CUs of one. An XCD left without a CU can hang the queue, and
one with fewer than the others sets the pace, since workgroups are dealt to XCDs in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from c3lib.errors import C3Error

WORD_BITS = 32


@dataclass(frozen=True)
class CuMask:
    """The CUs in ``bits`` of a GPU that has ``cus`` of them on ``xcds`` dies.

    Raises:
        C3Error: CUs that cannot be dealt to the dies evenly, bits beyond the last CU, a die without a CU.
    """

    bits: int
    cus: int
    xcds: int

    def __post_init__(self) -> None:
        if self.xcds < 1 or self.cus < 1 or self.cus % self.xcds:
            raise C3Error(
                f"CU mask: {self.cus} CUs do not lie evenly on {self.xcds} XCDs, so bits cannot be told apart"
            )
        if self.bits < 0 or self.bits >> self.cus:
            raise C3Error(f"CU mask {self.bits:#x}: has bits beyond the {self.cus} CUs of the GPU, which are dropped")
        if empty := [xcd for xcd, count in enumerate(self.per_xcd) if not count]:
            raise C3Error(f"CU mask {self.bits:#x}: leaves no CU on XCD {empty[0]}, which can hang the queue")

    @classmethod
    def of(cls, count: int, cus: int, xcds: int) -> CuMask:
        """The low ``count`` bits: as many CUs on every XCD.

        Raises:
            C3Error: no multiple of ``xcds`` between ``xcds`` and ``cus``.
        """
        _require_even(count, cus, xcds, most=cus)
        return cls((1 << count) - 1, cus, xcds)

    @classmethod
    def without(cls, count: int, cus: int, xcds: int) -> CuMask:
        """All CUs but the low ``count`` bits, which :meth:`of` gives to somebody else; with 0 the whole GPU.

        Raises:
            C3Error: no multiple of ``xcds`` between 0 and ``cus`` less one CU an XCD.
        """
        if count:
            _require_even(count, cus, xcds, most=cus - xcds)
        return cls(((1 << cus) - 1) & ~((1 << count) - 1), cus, xcds)

    def same_as(self, words: Sequence[int]) -> bool:
        """Whether a stream that gives these words back has this mask; bits beyond the last CU mean nothing."""
        bits = sum(word << WORD_BITS * place for place, word in enumerate(words))
        return bits & ((1 << self.cus) - 1) == self.bits

    @property
    def count(self) -> int:
        """How many CUs it has."""
        return self.bits.bit_count()

    @property
    def per_xcd(self) -> tuple[int, ...]:
        """CUs on each XCD."""
        every = sum(1 << bit for bit in range(0, self.cus, self.xcds))  # those of XCD 0
        return tuple((self.bits & every << xcd).bit_count() for xcd in range(self.xcds))

    @property
    def effective_per_xcd(self) -> int:
        """CUs of each XCD that a kernel gains from: those of the XCD that has the fewest."""
        return min(self.per_xcd)

    @property
    def words(self) -> tuple[int, ...]:
        """32-bit words, the low CUs first, as ``hipExtStreamCreateWithCUMask`` takes them (10 for 304 CUs)."""
        count = -(-self.cus // WORD_BITS)
        return tuple(self.bits >> WORD_BITS * place & (1 << WORD_BITS) - 1 for place in range(count))

    def __str__(self) -> str:
        return f"{self.count} of {self.cus} CUs, {self.effective_per_xcd} on each of {self.xcds} XCDs"


def _require_even(count: int, cus: int, xcds: int, most: int) -> None:
    if xcds < 1 or not xcds <= count <= most or count % xcds:
        raise C3Error(f"CU mask: cannot set {count} of {cus} CUs apart; expected a multiple of {xcds} up to {most}")
