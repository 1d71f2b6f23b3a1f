"""The transformer whose steps :mod:`c3lib.measure.fsdp_rank` times, and the ways that FSDP2 gathers its parameters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
from torch.nn import functional

import c3lib.collectives as c3
from c3lib.measure.fsdp_step import UNSHARDED, Job

LEARNING_RATE = 0.1
LIBRARY_LIMIT_S = 30  # for what a library does when it is first asked


class Block(nn.Module):
    """Attention, then an MLP four times as wide, each behind a norm: 12 hidden^2 parameters."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = (nn.LayerNorm(hidden, bias=False) for _ in range(2))
        self.mix, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        mixed = self.mix(self.before_attention(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    """A decoder that predicts the next token; called with tokens and targets it gives the loss."""

    def __init__(self, job: Job):
        super().__init__()
        self.embedding = nn.Embedding(job.vocabulary, job.hidden)
        self.blocks = nn.ModuleList(Block(job.hidden, job.heads) for _ in range(job.layers))
        self.norm = nn.LayerNorm(job.hidden, bias=False)
        self.head = nn.Linear(job.hidden, job.vocabulary, bias=False)

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def build(job: Job, arm: str, device: torch.device, mesh: Any, hook: AllGather | None) -> tuple[nn.Module, Any]:
    """The model of an arm and its optimizer; all arms begin with the same weights.

    Unsharded it runs the optimizer over a rank's share of the blocks, at rate 0: the work of a rank's step without
    any collective, and the weights stay.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Transformer(job)
    finally:
        torch.set_default_dtype(default)
    generator = torch.Generator(device).manual_seed(job.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # norms begin as ones
                parameter.normal_(0, 0.02, generator=generator)
    if arm == UNSHARDED:
        share = list(model.blocks.parameters())
        return model, torch.optim.SGD(share[: len(share) // job.ranks], lr=0.0)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if hook is not None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(hook)
    if arm == "copy_engine":
        c3.use_copy_engine_all_gather(model)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


class ZeroCtaAllGather(AllGather):
    """NCCL's own all-gather without thread blocks: outputs in symmetric memory, a communicator with that policy.

    Only the all-gather uses that communicator, so that all else is as in plain FSDP2.
    """

    def __init__(self, device: torch.device):
        import torch.distributed._symmetric_memory as symmetric

        library: Any = dist.ProcessGroupNCCL
        options = library.Options()
        options.config.cta_policy = library.NCCL_CTA_POLICY_ZERO
        limit = timedelta(seconds=LIBRARY_LIMIT_S)
        self._group, self._symmetric = dist.new_group(timeout=limit, pg_options=options), symmetric
        symmetric.set_backend("NCCL")
        dist.barrier(self._group)  # makes the communicator, which registered memory needs
        self._pool = symmetric.get_mem_pool(device)

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        with torch.cuda.use_mem_pool(self._pool):
            return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        assert self._group is not None
        self._symmetric.rendezvous(output_tensor, group=self._group.group_name)
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=self._group, async_op=async_op)


def zero_cta(device: torch.device) -> tuple[AllGather | None, str]:
    """NCCL's hook, tried once; or None and why not, the same on all ranks."""
    hook, reason = None, ""
    try:
        hook, ranks, rank = ZeroCtaAllGather(device), dist.get_world_size(), dist.get_rank()
        output = hook.allocate((ranks * 2**20,), dtype=torch.bfloat16, device=device)
        own = output.chunk(ranks)[rank].fill_(rank)
        hook(output, own, None)
        if output.view(ranks, -1)[:, -1].tolist() != list(range(ranks)):
            reason = "its first all-gather gave other bytes"
    except Exception as error:  # whatever a library of another version says
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no word'])[0]}"
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, reason)
    reason = next(filter(None, said), "")
    return (None, reason) if reason else (hook, "")


def without_copies(group: dist.ProcessGroup, loss: Callable[[], str]) -> str:
    """The negative control: ``loss()`` while rank 0 leaves all its copies out, and outputs hold zeros before."""
    from c3lib.collectives import communicator as protocol
    from c3lib.collectives.groups import communicators

    for comm in communicators(group):
        for region in comm.regions:
            region.block.lend(region.block.nbytes)[0].zero_()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    whole = protocol.even_copies
    if dist.get_rank() == 0:
        protocol.even_copies = lambda *given: ()  # type: ignore[assignment]
    try:
        return loss()
    finally:
        protocol.even_copies = whole
