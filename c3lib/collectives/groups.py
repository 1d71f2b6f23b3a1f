"""Which communicator a process group has: one for the CPU, one for the GPU of this process."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from c3lib.collectives.board import Board
from c3lib.collectives.communicator import Communicator
from c3lib.collectives.window import HostWindow, Window
from c3lib.errors import C3Error

_communicators: WeakKeyDictionary[dist.ProcessGroup, dict[str, Communicator]] = WeakKeyDictionary()
_made: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def find_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group that is meant (None: of all ranks); None on a rank that is not in it.

    Raises:
        C3Error: it is no group, or ``torch.distributed`` is not initialised.
    """
    if not dist.is_initialized():
        raise C3Error("group: torch.distributed is not initialised; call torch.distributed.init_process_group first")
    if group is dist.GroupMember.NON_GROUP_MEMBER:  # what torch.distributed.new_group gives to ranks that are outside
        return None
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, dist.ProcessGroup):
        raise C3Error(f"group: expected a process group of torch.distributed, got {type(found).__name__}")
    return found


def require_member(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """As :func:`find_group`. Raises :class:`C3Error` on a rank that is not in the group, too."""
    found = find_group(group)
    if found is None:
        raise C3Error("group: this rank is not in it; expected a group that it is in")
    return found


def communicator(group: dist.ProcessGroup, device: torch.device) -> Communicator:
    """The one communicator of a group for this kind of device; made, by all ranks together, when first asked for.

    Raises:
        C3Error: a rank does not come within the timeout, or is on another machine; GPUs cannot share memory; this
            process uses two GPUs in one group.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    there = _communicators.setdefault(group, {})
    if device.type not in there:
        _made[group] = _made.get(group, 0) + 1
        there[device.type] = _new(group, device, _made[group])
    found = there[device.type]
    if found.device != device:
        raise C3Error(f"device: this group's collectives run on {found.device} in this process, got {device}")
    return found


def _new(group: dist.ProcessGroup, device: torch.device, count: int) -> Communicator:
    board = Board(group, f"c3lib/{device.type}/{count}")
    window: Window
    if device.type == "cpu":
        window = HostWindow(board)
    else:
        from c3lib.collectives.ipc import CudaWindow

        window = CudaWindow(board, device)
    return Communicator(device, board, window)


def communicators(group: dist.ProcessGroup) -> list[Communicator]:
    """Those of a group so far."""
    return list(_communicators.get(group, {}).values())


def forget(group: dist.ProcessGroup) -> None:
    """Close all communicators of a group; collective."""
    for found in _communicators.pop(group, {}).values():
        found.close()
