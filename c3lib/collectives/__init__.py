"""All-gather and all-to-all by copy engine, for programs of one process a GPU; needs torch.

Called as in ``torch.distributed``, and as CPU processes too: ``docs/collectives.md`` tells how, and what is promised.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        "c3lib.collectives needs torch: make test sets it up, or pip install -e '.[gpu]' where it lies"
    ) from error

from c3lib.collectives.board import set_timeout
from c3lib.collectives.fsdp import CopyEngineAllGather, use_copy_engine_all_gather
from c3lib.collectives.ops import all_gather_into_tensor, all_to_all_single, check, destroy, empty

__all__ = [
    "CopyEngineAllGather",
    "all_gather_into_tensor",
    "all_to_all_single",
    "check",
    "destroy",
    "empty",
    "set_timeout",
    "use_copy_engine_all_gather",
]
