"""Every case that both layers run: which scenario, on what machine, and the facts that have to come out.

The real runtime is the judge: an expectation stands here because AMD's library behaves so over the model. Our double
has to agree, or what it shows about faults would be about another library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import scenarios_of_transfers
from pair import Facts
from scenarios_of_limits import NO_QUEUE, NONE_BUSY
from topology import Topology

PEER_ENGINES = list(range(2, 16))
USUAL = Topology()
INVALID_ARGUMENT, INVALID_AGENT = "0x1001", "0x1004"


@dataclass(frozen=True)
class Case:
    """A scenario on a machine of ``topology`` whose GPUs may have ``sdma_queues`` SDMA queues each (None: any number).

    Each fact has to be as in ``expected``; those not named there have to be ``else_``. ``kernels``: whether kernels
    are to be seen in place of engines.
    """

    name: str
    scenario: str
    expected: Mapping[str, Any] = field(default_factory=dict)
    else_: Any = None
    topology: Topology = USUAL
    variables: Mapping[str, str] = field(default_factory=dict)
    sdma_queues: int | None = None
    kernels: bool = False

    def differences(self, facts: Facts) -> list[str]:
        """What is not as expected, one line a fact."""
        wrong = [] if facts else ["no facts at all"]
        for name in sorted(facts.keys() | self.expected.keys()):
            wanted = self.expected.get(name, self.else_)
            if name not in facts or facts[name] != wanted:
                wrong.append(f"{name}: expected {wanted!r}, got {facts.get(name, 'nothing')!r}")
        return wrong

    def __str__(self) -> str:
        return self.name


# What the facts of a scenario of whole transfers have to be, where it is not "exact".
BACKEND = dict.fromkeys(("engines_chosen", "transfers_dropped", "transfers_of_all"), True)
NOTICED = {"a dropped copy is noticed": True}
NO_PEER_ENGINES = Topology(peer_engines=0)
SPLITS_COPIES = {"HSA_ENABLE_SDMA_COPY_SIZE_OVERRIDE": "0"}  # into packets of at most scenarios_of_plans.SPLIT bytes
EVERY_ENGINE = {"engines": PEER_ENGINES, "not engines": []}
THERE = {
    "gpus": 8, "architectures": ["gfx942"], "engines": ["2 + 14"], "link between GPUs": "XGMI",
    "link to the host": "PCIE", "between GPUs": "0xfffc", "from the host": "0xffff", "to the host": "0xffff",
    "within a GPU": INVALID_AGENT, "is_hardware": False, "stand-ins named": True,
}  # fmt: skip

CASES = (
    Case("8 GPUs, 2 + 14 engines each", "what_is_there", THERE),
    Case(
        "8 GPUs, 2 + 0 engines each (as in CPX)", "what_is_there",
        THERE | {"engines": ["2 + 0"], "between GPUs": "0x3", "from the host": "0x3", "to the host": "0x3"},
        topology=NO_PEER_ENGINES,
    ),
    Case("2 GPUs", "what_is_there", THERE | {"gpus": 2}, topology=Topology(gpus=2)),
    # Bytes.
    Case("plans of 2 ranks", "plans_of_2", NOTICED, "exact"),
    Case("plans of 4 ranks", "plans_of_4", NOTICED, "exact"),
    Case("plans of 8 ranks", "plans_of_8", NOTICED, "exact"),
    Case("uneven and empty shards", "uneven_shards", else_=True),
    Case("around packet splits", "packet_splits", else_="exact"),
    Case("around packet splits, copies split", "packet_splits", else_="exact", variables=SPLITS_COPIES),
    Case("16 MiB a shard, 8 ranks", "large_shards", else_="exact"),
    Case("plans over host engines only (as in CPX)", "small_plans", else_="exact", topology=NO_PEER_ENGINES),
    Case("plans of 4 ranks of 4 GPUs", "small_plans", else_="exact", topology=Topology(gpus=4)),
    Case(
        "plans where no engine is named for a link (as in a VM)", "small_plans", else_="exact",
        topology=Topology(one_engine_a_link=False),
    ),
    # The backend's own engines, buffers and copies.
    *(Case(name, name, else_=BACKEND.get(name, "exact")) for name in scenarios_of_transfers.SCENARIOS),
    Case("transfers, copies split", "transfers_around_splits", else_="exact", variables=SPLITS_COPIES),
    Case("transfers, host engines only (as in CPX)", "transfers_of_all", else_=True, topology=NO_PEER_ENGINES),
    Case("transfers of 2 GPUs", "transfers_of_all", else_=True, topology=Topology(gpus=2)),
    # Single copies.
    Case(
        "what is refused", "refusals",
        {
            "engine for a peer": "0x0", "no agent": INVALID_AGENT,
            "ours: engine 16": "amd: GPU 0 has no engine 16; expected 0 to 15",
            "ours: no bytes": "amd: a copy of 0 bytes would never be signalled; leave it out, and out of the count",
            "signal untouched by all that was refused": 1,
        },
        INVALID_ARGUMENT,
    ),
    Case("no bytes", "size_zero", {"status": "0x0", "ends": False}),
    Case(
        "dependencies, counting, times", "dependencies",
        {
            "behind a shut gate": [False, False], "gate open": [True, True], "five copies, one signal": True,
            "times in order": True,
            "times of five": "amd: a signal that counted 5 copies holds no times; give each copy its own",
        },
    ),
    Case(
        "push and pull", "who_copies",
        {
            "push": {"GPU 0": "0x100", "GPU 1": "0x0", "ends": True},
            "pull": {"GPU 0": "0x0", "GPU 1": "0x100", "ends": True},
        },
    ),
    Case("Ctrl-C", "interrupted", else_=True),
    Case("after a fork", "forked", else_=True),
    Case("spawned workers", "spawned", {"exit status": [0, 0]}),
    # Access and limits.
    Case(
        "access taken away", "access",
        {"4096 bytes": True, "1048576 bytes": True, "2097152 bytes": False, "16777216 bytes": False},
    ),
    Case("a full ring", "full_ring", else_=True),
    # Proof of path, and the three ways to lose the engines without a word.
    Case("path: engines", "path", EVERY_ENGINE),
    Case("path: host engines (as in CPX)", "path", EVERY_ENGINE | {"engines": [0, 1]}, topology=NO_PEER_ENGINES),
    Case(
        "path: HSA_ENABLE_SDMA=0", "path", {"engines": [], "not engines": [NONE_BUSY]},
        variables={"HSA_ENABLE_SDMA": "0"}, kernels=True,
    ),
    Case(
        "path: HSA_ENABLE_PEER_SDMA=0", "path", {"engines": [], "not engines": [NONE_BUSY]},
        variables={"HSA_ENABLE_PEER_SDMA": "0"}, kernels=True,
    ),
    Case("path: no SDMA queue left", "path", {"engines": [], "not engines": [NO_QUEUE]}, sdma_queues=0, kernels=True),
    Case(
        "path: four SDMA queues a GPU", "path", {"engines": [2, 3, 4, 5], "not engines": [NO_QUEUE]},
        sdma_queues=4, kernels=True,
    ),
)  # fmt: skip

# Where the facts are sentences of ours: not spelt out here, but both layers have to give the same ones.
SAME = (
    Case("engines: HSA_ENABLE_SDMA=0", "engines_lost", variables={"HSA_ENABLE_SDMA": "0"}),
    Case("engines: HSA_ENABLE_PEER_SDMA=0", "engines_lost", variables={"HSA_ENABLE_PEER_SDMA": "0"}),
    Case("engines: no SDMA queue left", "engines_lost", sdma_queues=0),
    Case("engines: seven SDMA queues a GPU", "engines_lost", sdma_queues=7),
    Case("engines: host engines only (as in CPX)", "engines_lost", topology=NO_PEER_ENGINES),
)
