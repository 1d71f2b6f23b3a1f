"""FSDP2's all-gather by copy engine: a hook for ``FSDPModule.set_custom_all_gather``.

FSDP2 asks the hook for the output, copies the rank's shards into the rank's own part of it and then calls the hook: an
all-gather in place, without any copy within a GPU. Outputs come from a pool of registered memory, so that no host has
to wait for another.

Which buffer is free is known when the last tensor that used it is gone. FSDP2 keeps the output until the streams that
it gathers on wait for the copy out of it; so whoever takes the buffer next on the same stream comes after that copy,
and on another stream waits for the first. Ranks choose alike since they run the same program; were they not to, the
notes that they compare would tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from c3lib.collectives.communicator import Communicator, Region
from c3lib.collectives.groups import communicator, find_group, require_member
from c3lib.collectives.ops import all_gather_into_tensor
from c3lib.errors import C3Error


@dataclass
class _Buffer:
    region: Region
    user: Callable[[], Any]  # None once nobody uses it
    stream: torch.Stream | None  # that it was taken on last


_pools: WeakKeyDictionary[Communicator, list[_Buffer]] = WeakKeyDictionary()


class CopyEngineAllGather(AllGather):
    """The hook for modules that shard over ``group`` (None: all ranks); all hooks of a group share its buffers.

    Given another group in a call it is right as well, only slower: the ranks' hosts then wait for one another. A rank
    that is not in ``group`` can make a hook, but not gather with it.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        find_group(group)
        self._group = group

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """An output: the smallest free buffer of the pool that is large enough, or a new one, which all ranks make.

        Raises:
            C3Error: this rank is not in the group, there is no room, or a rank does not come within the timeout.
        """
        shape = tuple(int(length) for length in size)
        nbytes = math.prod(shape) * dtype.itemsize
        comm = communicator(require_member(self._group), torch.device(device))
        buffers = _pools.setdefault(comm, [])
        fit = [buffer for buffer in buffers if buffer.user() is None and buffer.region.block.nbytes >= nbytes]
        if fit:
            buffer = min(fit, key=lambda buffer: buffer.region.block.nbytes)
        else:
            buffer = _Buffer(comm.register(nbytes), lambda: None, None)
            buffers.append(buffer)
        if comm.device.type == "cuda":
            stream = torch.cuda.current_stream(comm.device)
            if buffer.stream is not None and buffer.stream != stream:
                stream.wait_stream(buffer.stream)
            buffer.stream = stream
        tensor, buffer.user = buffer.region.block.lend(nbytes)
        return tensor.view(dtype).reshape(shape)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """As :func:`c3lib.collectives.all_gather_into_tensor`."""
        return all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


def use_copy_engine_all_gather(model: nn.Module) -> nn.Module:
    """Let every FSDP2 module of ``model`` gather its parameters by copy engine, one hook for each group of ranks.

    Call it after ``fully_shard`` and before the first step. Returns the model.

    Raises:
        C3Error: no module of ``model`` is sharded by FSDP2, or one shards over several groups, which FSDP2 does not
            let a hook serve.
    """
    if not isinstance(model, nn.Module):
        raise C3Error(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    hooks: dict[dist.ProcessGroup, CopyEngineAllGather] = {}
    sharded = [(name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise C3Error("model: expected modules sharded by torch.distributed.fsdp.fully_shard, found none")
    for name, module in sharded:
        state = module._get_fsdp_state()
        # FSDP2 tells nobody over which ranks a module shards; its name for that differs between versions.
        only = getattr(state, "_fsdp_param_group", None) if not hasattr(state, "_fsdp_param_groups") else None
        groups = [only] if only is not None else list(getattr(state, "_fsdp_param_groups", []))
        if len(groups) > 1:
            raise C3Error(f"model: module {name!r} shards over several groups of ranks, which no hook can serve")
        for part in groups:
            over = getattr(part.mesh_info, "shard_process_group", None)
            if over is not None:  # None: replicated only, nothing to gather
                hook = hooks.setdefault(over, CopyEngineAllGather(over))
                module.set_custom_all_gather(hook)
    return model
