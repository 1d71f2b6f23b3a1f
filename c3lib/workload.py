"""What runs: a GEMM, a collective, a scenario of both, and the taxonomy of scenarios."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from c3lib.errors import C3Error, unknown
from c3lib.hardware import COLLECTIVES, Gpu

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}

LARGEST = 2**53
"""No dimension and no size exceeds this: up to here every whole number is exact as a float."""

LONG_RATIO = 1.15
"""A kernel is the long one when it takes more than this times the other (conccl.taxonomy.*: 115 % / 15 %)."""

LATENCY_BOUND_BELOW = 0.8
"""A collective is latency-bound while its bandwidth is below this share of its plateau.

For ``T = t0 + s / B`` this equals an elasticity d ln T / d ln s below 0.8: less than 80 % of the time scales with size.
"""


@dataclass(frozen=True)
class Gemm:
    """``C[m, n] = A[m, k] B[k, n]``, one GPU's share.

    Raises:
        C3Error: a dimension is not a positive integer, or the dtype is unknown.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            object.__setattr__(self, name, whole(f"gemm {name}", getattr(self, name), least=1))
        if self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)

    @classmethod
    def parse(cls, text: str, dtype: str = "bf16") -> Gemm:
        """``"8192x28672x8192"`` as m x n x k."""
        match = re.fullmatch(r"\s*(\d+)\s*[xX*]\s*(\d+)\s*[xX*]\s*(\d+)\s*", text, re.ASCII)
        if match is None:
            raise C3Error(f"gemm must read MxNxK, for example 8192x28672x8192, not {_short(text)}")
        m, n, k = (_few_digits(f"gemm {name}", digits) for name, digits in zip("mnk", match.groups(), strict=True))
        return cls(m, n, k, dtype)

    @property
    def flops(self) -> int:
        """Floating-point operations: one multiply and one add a term, ``2 m n k``."""
        return 2 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        """Compulsory memory traffic: A and B read once, C written once."""
        return DTYPE_BYTES[self.dtype] * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def intensity(self) -> float:
        """Operational intensity, flop/B."""
        return self.flops / self.nbytes

    def bound(self, gpu: Gpu) -> str:
        """``"compute"`` or ``"memory"``: which side of the GPU's ridge point (peak over peak) the GEMM lies on."""
        return "compute" if self.intensity >= gpu.ridge else "memory"

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Collective:
    """An all-gather or an all-to-all among ``ranks`` GPUs.

    ``nbytes`` is the **total**: the gathered output of an all-gather, the send buffer of a rank in an all-to-all.
    ``rank_bytes`` is the piece that one rank sends to each peer (total over ranks, rounded up), so for both kinds a
    rank sends ``(ranks - 1) * rank_bytes``.

    Raises:
        C3Error: unknown kind, negative size, fewer than one rank, or a value that is not an integer.
    """

    kind: str
    nbytes: int
    ranks: int

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise unknown("collective", self.kind, COLLECTIVES)
        object.__setattr__(self, "nbytes", whole("collective nbytes", self.nbytes, least=0))
        object.__setattr__(self, "ranks", whole("collective ranks", self.ranks, least=1))

    @property
    def rank_bytes(self) -> int:
        """Bytes that one rank sends to each peer."""
        return -(-self.nbytes // self.ranks)

    @property
    def sent_bytes(self) -> int:
        """Bytes that leave one rank (and, as all ranks do the same, that arrive at one)."""
        return (self.ranks - 1) * self.rank_bytes


@dataclass(frozen=True)
class Scenario:
    """A GEMM beside a collective, independent of each other; ``origin`` says where the pair comes from."""

    name: str
    gemm: Gemm
    collective: Collective
    origin: str = ""


def length_class(gemm_time_s: float, collective_time_s: float) -> str:
    """``"G-long"``, ``"C-long"`` or ``"GC-equal"`` from the two isolated times (conccl.taxonomy.*)."""
    if gemm_time_s > LONG_RATIO * collective_time_s:
        return "G-long"
    if collective_time_s > LONG_RATIO * gemm_time_s:
        return "C-long"
    return "GC-equal"


_SIZE = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of ``"896MiB"``, ``"1.5GB"`` or ``"4096"``; KiB, MiB, GiB are powers of 1024, KB, MB, GB powers of 1000."""
    match = _SIZE.fullmatch(text.strip())
    if match:
        _few_digits("size", match[1].partition(".")[0].replace("_", ""))
    if match is None or len(text) > 40:
        raise C3Error(f"size must read like 896MiB, 128MB or 4096, not {_short(text)}")
    number, prefix, binary = match.groups()
    power = " KMGT".index((prefix or " ").upper())
    # Exact: as a float 1.1 MB would not be a whole number of bytes, and large sizes would be rounded.
    value = Fraction(number.replace("_", "")) * (1024 if binary else 1000) ** power
    if value.denominator != 1:
        raise C3Error(f"size must be a whole number of bytes, not {text!r}")
    return whole(f"size {text!r}", int(value), least=0)


def _few_digits(what: str, digits: str) -> int:
    """The number; so many digits that it is too large are refused before Python, which reads 4300, has to."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(LARGEST)):
        raise C3Error(f"{what} must be at most {LARGEST}, not a number of {len(digits)} digits")
    return int(digits)


def _short(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:60]!r} and {len(text) - 60} characters more"


def format_size(nbytes: int) -> str:
    """``"896 MiB"``: the largest binary unit that keeps the number at 1 or more."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def whole(what: str, value: object, least: int) -> int:
    """``value`` as an int (NumPy's are taken too). Raises :class:`C3Error` outside ``least`` to :data:`LARGEST`."""
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else least - 1
    if number < least:
        raise C3Error(f"{what} must be a whole number of at least {least}, not {value!r}")
    if number > LARGEST:
        raise C3Error(f"{what} must be at most {LARGEST}")
    return number
