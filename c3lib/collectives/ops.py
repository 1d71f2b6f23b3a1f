"""The collectives, called as those of ``torch.distributed`` are, and what is checked of their arguments."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from c3lib.collectives.board import require_seconds
from c3lib.collectives.communicator import Communicator, Splits
from c3lib.collectives.groups import communicator, communicators, find_group, forget, require_member
from c3lib.collectives.window import bytes_of
from c3lib.errors import C3Error
from c3lib.transfer.plan import require_int


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gather the input of every rank into the output, in order of rank, by copy engine.

    ``output_tensor`` has the elements of all inputs, concatenated or stacked; inputs are of one size. Where the input
    is the rank's own part of the output nothing is copied within a rank: on a GPU such a copy would run on SMs.

    Returns:
        A handle when ``async_op``, else None; None also on a rank that is not in the group.

    Raises:
        C3Error: an argument is unfit, ranks make different calls, or a rank does not come within the timeout.
    """
    comm = _communicator(
        group, "all_gather_into_tensor", ("output_tensor", output_tensor), ("input_tensor", input_tensor)
    )
    if comm is None:
        return None
    wanted = comm.ranks * input_tensor.numel()
    if output_tensor.numel() != wanted:
        raise C3Error(
            f"output_tensor: expected {wanted} elements, the {input_tensor.numel()} of input_tensor from each of "
            f"{comm.ranks} ranks, got {output_tensor.numel()}"
        )
    output, source = bytes_of(output_tensor), bytes_of(input_tensor)
    own = output[comm.rank * source.numel() :][: source.numel()]
    in_place = own.data_ptr() == source.data_ptr()
    if not in_place and _overlap(output, source):
        raise C3Error(f"input_tensor: overlaps output_tensor, but is not this rank's part (part {comm.rank}) of it")
    return _handle(comm.run("all-gather", output, source, async_op, in_place=in_place), async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Send block p of the input to rank p, and receive block r of the output from rank r, by copy engine.

    Blocks are rows (of dimension 0): as many a rank, or as many as the split sizes say. Where one rank gives split
    sizes all ranks have to, and the ranks then wait for one another on the host, to tell each other their sizes.

    Returns:
        A handle when ``async_op``, else None; None also on a rank that is not in the group.

    Raises:
        C3Error: an argument is unfit, ranks make different calls, or a rank does not come within the timeout.
    """
    comm = _communicator(group, "all_to_all_single", ("output", output), ("input", input))
    if comm is None:
        return None
    _require_sizes("output_split_sizes", output_split_sizes)
    _require_sizes("input_split_sizes", input_split_sizes)
    rows = [_row_nbytes("output", output), _row_nbytes("input", input)]
    if output_split_sizes or input_split_sizes:
        receives = _split(comm, "output", output, output_split_sizes, rows[0])
        sends = _split(comm, "input", input, input_split_sizes, rows[1])
        splits = Splits(sends, receives)
    else:
        splits = None
        for name, tensor in (("output", output), ("input", input)):
            _split(comm, name, tensor, None, 1)
        if output.numel() != input.numel():
            raise C3Error(f"output: expected {input.numel()} elements, as many as input, got {output.numel()}")
    received, source = bytes_of(output), bytes_of(input)
    if _overlap(received, source):
        raise C3Error("input: overlaps output; an all-to-all cannot be done in place")
    return _handle(comm.run("all-to-all", received, source, async_op, splits=splits), async_op)


def empty(
    size: int | Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """An uninitialised tensor in registered memory: as an output it needs no word between the ranks' hosts.

    Collective, with one size on all ranks; the memory stays registered until :func:`destroy`, so ask for it once and
    keep it. All ranks have to pass the same tensor of theirs (or the same part of it) to a collective.

    Raises:
        C3Error: an argument is unfit, this rank is not in the group, there is no room, sizes differ, or a rank does not
            come within the timeout.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or _quantized(dtype):
        raise C3Error(f"dtype: expected a torch.dtype that is not quantized, got {dtype!r}")
    try:
        lengths: tuple[Any, ...] = tuple(size)  # type: ignore[arg-type]
    except TypeError:
        lengths = (size,)
    shape = [require_int("size", length, 0) for length in lengths]
    device, members = _device(device), require_member(group)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise C3Error(f"device: this process has {torch.cuda.device_count()} GPUs that CUDA can use, got {device}")
    comm = communicator(members, device)
    nbytes = math.prod(shape) * dtype.itemsize
    tensor, _ = comm.register(nbytes).block.lend(nbytes)
    return tensor.view(dtype).reshape(shape)


def check(timeout_s: float, group: dist.ProcessGroup | None = None) -> None:
    """Wait on the host until all collectives of a group so far are over on this rank; for debugging hangs.

    A stream that waits for a peer waits without end; this says for whom. On a rank outside the group nothing is done.

    Raises:
        C3Error: ``timeout_s`` is no positive number; or after as many seconds, naming rank, peer, collective and signal
            that is missing.
    """
    timeout_s, members = require_seconds("timeout_s", timeout_s), find_group(group)
    for comm in communicators(members) if members is not None else []:
        comm.check(timeout_s)


def destroy(group: dist.ProcessGroup | None = None) -> None:
    """Give back what the collectives of a group hold; collective, and before ``destroy_process_group``.

    On a rank outside the group nothing is done.

    Raises:
        C3Error: a rank does not come within the timeout.
    """
    members = find_group(group)
    if members is not None:
        forget(members)


def _communicator(
    group: dist.ProcessGroup | None, op: str, output: tuple[str, torch.Tensor], source: tuple[str, torch.Tensor]
) -> Communicator | None:
    """The communicator for two tensors that fit it and one another; None on a rank that is not in the group."""
    for name, tensor in (output, source):
        if not isinstance(tensor, torch.Tensor):
            raise C3Error(f"{name}: expected a tensor, got {type(tensor).__name__}")
        _device(tensor.device, name)
        if _quantized(tensor.dtype) or tensor.is_nested:
            raise C3Error(
                f"{name}: expected plain values, got a {'nested' if tensor.is_nested else 'quantized'} tensor"
            )
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise C3Error(f"{name}: expected a contiguous tensor, got strides {_strides(tensor)}")
        if tensor.is_conj() or tensor.is_neg():
            raise C3Error(
                f"{name}: expected plain values, got a lazy conjugate or negative; call .resolve_conj() first"
            )
    for what in ("dtype", "device"):
        ours, theirs = getattr(output[1], what), getattr(source[1], what)
        if ours != theirs:
            raise C3Error(f"{output[0]}: expected {what} {theirs}, as {source[0]} has, got {ours}")
    members = find_group(group)
    if members is None:
        warnings.warn(f"{op}: this rank is not in the group, nothing is done", stacklevel=3)
        return None
    return communicator(members, output[1].device)


def _device(device: torch.device | str, name: str = "device") -> torch.device:
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise C3Error(f"{name}: expected device cpu or cuda, got {device!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise C3Error(f"{name}: expected device cpu or cuda, got {device}")
    return device


def _quantized(dtype: torch.dtype) -> bool:
    """Whether tensors of it have a scale beside their bytes; to be viewed as bytes would end the process."""
    return str(dtype).startswith(("torch.qint", "torch.quint"))


def _row_nbytes(name: str, tensor: torch.Tensor) -> int:
    if tensor.dim() == 0:
        raise C3Error(f"{name}: expected at least one dimension, to cut into blocks, got a scalar")
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def _require_sizes(argument: str, sizes: Sequence[int] | None) -> None:
    if sizes is not None and not isinstance(sizes, (list, tuple)):
        raise C3Error(f"{argument}: expected a list of integers, got {type(sizes).__name__}")


def _split(
    comm: Communicator, name: str, tensor: torch.Tensor, sizes: Sequence[int] | None, row_nbytes: int
) -> list[int]:
    """Bytes of each block."""
    if not sizes:
        if len(tensor) % comm.ranks:
            raise C3Error(f"{name}: expected rows (dimension 0) divisible by {comm.ranks} ranks, got {len(tensor)}")
        return [len(tensor) // comm.ranks * row_nbytes] * comm.ranks
    argument = f"{name}_split_sizes"
    rows = [require_int(argument, size, 0) for size in sizes]
    if len(rows) != comm.ranks:
        raise C3Error(f"{argument}: expected one size for each of {comm.ranks} ranks, got {len(rows)}")
    if sum(rows) != len(tensor):
        raise C3Error(f"{argument}: expected a sum of {len(tensor)}, the rows of {name}, got {sum(rows)}")
    return [count * row_nbytes for count in rows]


def _strides(tensor: torch.Tensor) -> str:
    return (
        f"{tensor.stride()} for shape {tuple(tensor.shape)}" if tensor.layout == torch.strided else str(tensor.layout)
    )


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.numel() and second < first + one.numel()


def _handle(work: dist.Work, asynchronous: bool) -> dist.Work | None:
    return work if asynchronous else None
