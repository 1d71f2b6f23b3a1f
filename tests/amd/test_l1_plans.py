"""L1: engines, buffers and copies of the backend on our double: bytes, engines really used, and every fault noticed."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from double_control import Control, Fault
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenarios_of_transfers import SCENARIOS, cut, engines_for, many_copies, moved, transfer

from c3lib.amd import buffers as buffers_module
from c3lib.amd import runtime as runtime_module
from c3lib.amd.buffers import Buffers
from c3lib.amd.engines import EngineProof, _grouped, candidates, choose_engines, prove_engine
from c3lib.amd.runtime import Runtime, open_runtime
from c3lib.amd.signals import Signal
from c3lib.amd.transport import SdmaCopies
from c3lib.errors import C3Error
from c3lib.transfer import MODES, RECEIVE, SEND, TransferPlan
from c3lib.transfer.builders import BUILDERS, build_plan

SOON_S = 0.5  # how long a hang is waited for here
PLANS = [(kind, algorithm, mode) for kind, algorithm in BUILDERS for mode in ("push", "pull")]


@pytest.fixture(scope="module")
def opened(double: Path) -> Iterator[Runtime]:
    yield open_runtime(double)
    runtime_module._opened = None  # whoever comes next in this process opens what it wants


@pytest.fixture
def control(opened: Runtime, double: Path) -> Iterator[Control]:
    """The double's faults and journal, in order again afterwards."""
    found = Control(double)
    found.reset()
    opened._lanes.clear()  # copies that the double forgot wait nowhere
    yield found
    found.reset()


@pytest.fixture
def runtime(opened: Runtime, control: Control) -> Runtime:
    return opened


@pytest.fixture
def ready(runtime: Runtime) -> Iterator[Callable[[TransferPlan], SdmaCopies]]:
    """A transport of a plan whose buffers are filled for turn 0."""
    made = []

    def ready(plan: TransferPlan) -> SdmaCopies:
        made.append(Buffers(runtime, runtime.gpus[: plan.ranks], plan))
        made[-1].prepare(0)
        return SdmaCopies(made[-1], engines_for(runtime, plan.ranks, plan.mode))

    yield ready
    for buffers in made:
        buffers.close()


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios_of_the_backend(runtime: Runtime, scenario: str) -> None:
    facts = SCENARIOS[scenario](runtime)
    assert facts
    assert {name: said for name, said in facts.items() if said not in (True, "exact")} == {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    how=st.sampled_from(PLANS), ranks=st.integers(2, 8), nbytes=st.integers(2, 40000), lanes=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_any_plan_does_what_the_host_executor_does(
    runtime: Runtime, how: tuple[str, str, str], ranks: int, nbytes: int, lanes: int, seed: int
) -> None:
    kind, algorithm, mode = how
    plan = build_plan(kind, nbytes, ranks, "switch", algorithm, mode, engines=lanes)
    assert moved(runtime, cut(plan, seed)) == "exact"


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_every_copy_runs_on_the_engine_chosen_for_its_pair(
    runtime: Runtime, control: Control, ready: Callable[[TransferPlan], SdmaCopies], mode: str
) -> None:
    transport = ready(build_plan("all-to-all", 8 * 4096, 8, mode=mode))
    control.reset()
    transfer(transport)
    ran = Counter((entry.gpu, entry.engine, entry.nbytes) for entry in control.journal())
    chosen = Counter((c.copier, c.engine, 4096) for c in engines_for(runtime, 8, mode))
    assert ran == chosen
    assert transport.copies == 56


def test_a_step_begins_when_the_one_before_is_done_on_all_ranks(
    control: Control, ready: Callable[[TransferPlan], SdmaCopies]
) -> None:
    transport = ready(build_plan("all-gather", 4 * 4096, 4, algorithm="ring"))
    control.reset()
    transfer(transport)
    journal = sorted(control.journal(), key=lambda entry: entry.start)
    assert len(journal) == 12
    for earlier, later in ((journal[:4], journal[4:8]), (journal[4:8], journal[8:])):
        assert max(entry.end for entry in earlier) <= min(entry.start for entry in later)


def test_nothing_moves_before_the_gate_opens(control: Control, ready: Callable[[TransferPlan], SdmaCopies]) -> None:
    transport = ready(build_plan("all-gather", 4096, 4))
    control.reset()
    transport.ready()
    transport.submit()
    time.sleep(0.05)
    assert control.journal() == []
    transport.release()
    transport.wait()
    assert transport.buffers.check(0).verified
    start_s, end_s = transport.times()
    assert 0 <= start_s < end_s < 10


def test_times_are_of_the_first_and_the_last_copy(
    runtime: Runtime, control: Control, ready: Callable[[TransferPlan], SdmaCopies]
) -> None:
    transport = ready(many_copies(2, 60))
    control.reset()
    transfer(transport)
    journal = control.journal()
    wanted = min(entry.start for entry in journal), max(entry.end for entry in journal)
    assert len(journal) == 60
    assert transport.times() == tuple(runtime.seconds(ticks) - transport.released_s for ticks in wanted)


def test_peers_share_an_engine_where_the_plan_has_fewer(
    control: Control, ready: Callable[[TransferPlan], SdmaCopies]
) -> None:
    transport = ready(build_plan("all-to-all", 4096, 4, engines=1))
    control.reset()
    transfer(transport)
    assert {(entry.gpu, entry.engine) for entry in control.journal()} == {(0, 2), (1, 6), (2, 2), (3, 6)}
    engines = transport.engines
    narrow = replace(engines, choices=tuple(replace(choice, accepted=1 << choice.engine) for choice in engines))
    assert narrow.of(0, 1, 0) == 2
    with pytest.raises(C3Error, match="engine 2 of rank 0 cannot reach rank 3; give each peer an engine"):
        narrow.of(0, 3, 0)


def test_more_copies_than_a_queue_holds_follow_the_gate(ready: Callable[[TransferPlan], SdmaCopies]) -> None:
    transport = ready(many_copies(2, 9000))
    assert 1000 < transport.behind_gate < transport.copies == 9000
    transfer(transport)
    assert transport.buffers.check(0).verified


def test_empty_copies_are_left_out_and_out_of_the_count(ready: Callable[[TransferPlan], SdmaCopies]) -> None:
    plan = build_plan("all-gather", 4096, 4)
    copies = plan.copies.repeat(2)
    copies["nbytes"][::2] = 0
    transport = ready(replace(plan, copies=copies))
    assert transport.copies == 12
    transfer(transport, SOON_S)
    assert transport.buffers.check(0).verified


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_buffers_are_open_to_those_who_copy_and_to_no_others(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    opened_to = {}
    monkeypatch.setattr(
        runtime, "allow", lambda buffer, agents: opened_to.update({buffer.address: [a.index for a in agents]})
    )
    plan = build_plan("all-gather", 4 << 20, 4, algorithm="ring", mode=mode)
    buffers = Buffers(runtime, runtime.gpus[:4], plan)
    guard = buffers_module.GUARD_NBYTES
    for rank in range(4):
        before, after = (rank - 1) % 4, (rank + 1) % 4
        send = opened_to[buffers.address(rank, SEND)]
        receive = opened_to[buffers.address(rank, RECEIVE) - guard]
        # Who sends pushes: it reads its own, and the rank before writes here. Who receives pulls: the rank after reads.
        assert send == ([rank] if mode == "push" else sorted([rank, after]))
        assert receive == (sorted([rank, before]) if mode == "push" else sorted([rank, after]))
    buffers.close()


def test_large_buffers_without_a_grant_are_noticed(
    runtime: Runtime, ready: Callable[[TransferPlan], SdmaCopies]
) -> None:
    transport = ready(build_plan("all-gather", 4 * (2 << 20), 4))
    runtime.allow(transport.buffers._receive[2], [runtime.gpus[2], runtime.gpus[1]])
    with pytest.raises(C3Error, match=r"did not end within 0.5 s.*access.*not there: .*rank 0 to 2 on engine 4 of"):
        transfer(transport, SOON_S)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "algorithm", "mode"), PLANS)
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.ENGINE_ERROR])
def test_a_copy_that_hangs_or_fails_is_named_in_time(
    runtime: Runtime, control: Control, ready: Callable[[TransferPlan], SdmaCopies],
    kind: str, algorithm: str, mode: str, fault: Fault,
) -> None:  # fmt: skip
    transport = ready(build_plan(kind, 4099, 4, "mesh", algorithm, mode))
    last = transport.buffers.copies()[-1]
    copier, peer = (last.src_rank, last.dst_rank) if mode == "push" else (last.dst_rank, last.src_rank)
    engine = transport.engines.of(copier, peer)
    on_it = [
        issue for issue in transport.buffers.copies()
        if (issue.src_rank, issue.dst_rank) == (last.src_rank, last.dst_rank)
    ]  # fmt: skip
    control.fault(fault, gpu=copier, engine=engine, nth=len(on_it) - 1)
    start_s = time.monotonic()
    said = "did not end within" if fault == Fault.HANG else "an engine reported an error"
    who = f"rank {last.src_rank} to {last.dst_rank} on engine {engine} of rank {copier}"
    with pytest.raises(C3Error, match=f"step {last.step} of {kind} .*{said}.*not there: .*{who}"):
        transfer(transport, SOON_S)
    assert time.monotonic() - start_s < SOON_S + 3
    assert transport.buffers.abandoned


def test_a_hang_amid_the_steps_is_found_by_what_has_not_come(
    control: Control, ready: Callable[[TransferPlan], SdmaCopies]
) -> None:
    transport = ready(build_plan("all-gather", 8 * 512, 8, algorithm="ring"))
    control.fault(Fault.HANG, gpu=5, engine=transport.engines.of(5, 6), nth=3)
    who = "not there: rank 5 to 6 on engine 6 of rank 5$"
    with pytest.raises(
        C3Error,
        match=f"step 3 of all-gather ring plan .*8 copies, did not end within 0.5 s, 1 of 8 still to come.*{who}",
    ):
        transfer(transport, SOON_S)


@pytest.mark.parametrize(("kind", "algorithm", "mode"), PLANS)
@pytest.mark.parametrize(("fault", "wrong_nbytes"), [(Fault.CORRUPT, 1), (Fault.DROP, 1024)])
def test_wrong_and_lost_bytes_are_counted(
    control: Control, ready: Callable[[TransferPlan], SdmaCopies],
    kind: str, algorithm: str, mode: str, fault: Fault, wrong_nbytes: int,
) -> None:  # fmt: skip
    transport = ready(build_plan(kind, 4096, 4, "mesh", algorithm, mode))
    last = transport.buffers.copies()[-1]
    copier, peer = (last.src_rank, last.dst_rank) if mode == "push" else (last.dst_rank, last.src_rank)
    repeats = sum((i.src_rank, i.dst_rank) == (last.src_rank, last.dst_rank) for i in transport.buffers.copies())
    control.fault(fault, gpu=copier, engine=transport.engines.of(copier, peer), nth=repeats - 1)
    transfer(transport)
    check = transport.buffers.check(0)
    assert (check.verified, check.wrong_nbytes, check.compared_nbytes) == (False, wrong_nbytes, 4 * 4096)
    assert f"{wrong_nbytes} bytes of rank {last.dst_rank} are wrong" in check.first


def test_a_byte_written_beside_a_buffer_is_wrong(ready: Callable[[TransferPlan], SdmaCopies]) -> None:
    transport = ready(build_plan("all-gather", 4096, 4))
    transfer(transport)
    buffers = transport.buffers
    assert buffers.check(0).verified
    zero = buffers.runtime.allocate(buffers.runtime.gpus[1], 64)
    done = buffers.runtime.signal(1)
    gpus = buffers.runtime.gpus
    buffers.runtime.allow(zero, gpus)
    buffers.runtime.copy(buffers.address(1, RECEIVE) + 4096, gpus[1], zero.address, gpus[0], 1, done, 2)
    done.wait(SOON_S, "a stray byte")
    check = buffers.check(0)
    assert (check.verified, check.wrong_nbytes) == (False, 1)
    assert check.first.endswith("1 bytes of rank 1 are wrong, the first at 4096")


def test_a_refused_copy_ends_the_run(control: Control, ready: Callable[[TransferPlan], SdmaCopies]) -> None:
    transport = ready(build_plan("all-gather", 4096, 4))
    control.fault(Fault.SUBMIT_ERROR, gpu=1, engine=transport.engines.of(1, 3))
    with pytest.raises(C3Error, match=r"copy 4 of 12: .*a copy of 1024 bytes from GPU 1 to GPU 3 on engine 4"):
        transfer(transport)
    assert transport.gate.value == 0  # what was queued is not left waiting


def test_too_little_memory_is_named_and_given_back(runtime: Runtime, control: Control) -> None:
    plan = build_plan("all-gather", 4096, 4)
    control.fault(Fault.NO_MEMORY, gpu=2)
    with pytest.raises(C3Error, match="allocating 1024 bytes on GPU 2 failed"):
        Buffers(runtime, runtime.gpus[:4], plan)


def test_a_hang_of_the_host_side_is_named(runtime: Runtime, control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = Buffers(runtime, runtime.gpus[:4], build_plan("all-gather", 4096, 4))
    monkeypatch.setattr(buffers_module, "LIMIT_S", SOON_S)
    control.fault(Fault.HANG, gpu=3, engine=0)
    with pytest.raises(C3Error, match=r"a copy of \d+ bytes to rank 3's GPU by its engine 0 did not end within 0.5 s"):
        buffers.prepare(0)
    assert buffers.abandoned  # or memory that the engine may still write would be given to others


def test_ctrl_c_leaves_the_buffers_to_the_engines(
    runtime: Runtime, control: Control, ready: Callable[[TransferPlan], SdmaCopies], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ready(build_plan("all-gather", 4096, 2))
    transport.ready()
    transport.submit()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Signal, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transport.wait()
    assert transport.buffers.abandoned
    monkeypatch.undo()
    transport.release()
    transport.wait()
    given_back: list[object] = []
    monkeypatch.setattr(runtime, "free", given_back.append)
    transport.buffers.close()
    assert given_back == []


def test_a_plan_of_one_copy_that_is_dropped_has_no_times(runtime: Runtime) -> None:
    buffers = Buffers(runtime, runtime.gpus[:2], build_plan("all-gather", 1, 2))
    buffers.prepare(0)
    transport = SdmaCopies(buffers, engines_for(runtime, 2, "push"), drop=0)
    transfer(transport)
    assert [math.isnan(time_s) for time_s in transport.times()] == [True, True]
    assert buffers.check(0).wrong_nbytes == 1
    buffers.close()


def test_bytes_that_the_host_fails_to_read_are_wrong(
    control: Control, ready: Callable[[TransferPlan], SdmaCopies]
) -> None:
    transport = ready(build_plan("all-gather", 4 * 8192, 4))
    transfer(transport)
    # After the guard, the rank's own shard: what was staged last, and half of it would still lie there.
    control.fault(Fault.DROP, gpu=0, engine=1, nth=1)
    check = transport.buffers.check(0)
    assert (check.verified, check.wrong_nbytes) == (False, 8192)


# --- engines ---------------------------------------------------------------------------------------------------------


def test_the_preferred_engine_is_taken(runtime: Runtime) -> None:
    assert {choice.how for choice in engines_for(runtime, 8, "push")} == {"preferred"}


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_without_a_preference_each_peer_has_an_engine_of_its_own(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(runtime, "preferred_engine", lambda dst, src: 0)
    engines = choose_engines(runtime, runtime.gpus[:ranks])
    assert {choice.how for choice in engines} == {"chosen"}
    for copier in range(ranks):
        used = [choice.engine for choice in engines if choice.copier == copier]
        assert len(set(used)) == ranks - 1
        assert all(engine % 2 == 0 for engine in used)
    assert "6 chosen" in engines.path or ranks != 3


def test_a_preference_that_is_not_accepted_is_left_aside(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "preferred_engine", lambda dst, src: 1)  # a host engine
    assert {(c.engine, c.how) for c in choose_engines(runtime, runtime.gpus[:2])} == {(2, "chosen")}


def test_candidates_of_few_engines_are_shared() -> None:
    assert candidates(0b11, 0, 3) == [0, 1]
    assert candidates(0b11, 0, 3, {0}) == [1, 0]
    assert candidates(0b111100, 0b100000, 1) == [5, 2, 4, 3]
    assert candidates(0, 0, 1) == []


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault.HANG, "did not end within 0.5 s"),
        (Fault.ENGINE_ERROR, "an engine reported an error"),
        (Fault.SUBMIT_ERROR, "submitting a copy of 64 bytes"),
    ],
)
def test_an_engine_that_fails_its_proof_is_dropped_and_named(
    runtime: Runtime, control: Control, mode: str, fault: Fault, why: str
) -> None:
    control.fault(fault, gpu=0, engine=2)
    start_s = time.monotonic()
    engines = choose_engines(runtime, runtime.gpus[:3], mode, SOON_S)
    assert time.monotonic() - start_s < SOON_S + 3
    assert [choice.engine for choice in engines if choice.copier == 0] == [6, 4]
    assert len(engines.dropped) == 1
    assert engines.dropped[0].startswith("engine 2 of GPU 0 for GPU 1 failed: ")
    assert why in engines.dropped[0]
    assert "1 failed and are not used" in engines.path


def test_an_engine_that_failed_is_not_tried_for_another_peer(
    runtime: Runtime, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "preferred_engine", lambda dst, src: 1 << 2)
    control.fault(Fault.ENGINE_ERROR, gpu=0, engine=2)  # the first time only
    engines = choose_engines(runtime, runtime.gpus[:3])
    assert [(c.engine, c.how) for c in engines if c.copier == 0] == [(4, "chosen"), (6, "chosen")]
    assert [(c.engine, c.how) for c in engines if c.copier == 1] == [(2, "preferred"), (2, "preferred")]


@pytest.mark.parametrize(
    ("masks", "held", "why"),
    [
        ([0xFFFC], 0xFFFC, "the engine stayed idle while it was held back"),
        ([0xFFFC, 0xFFF8], 0xFFF8, "the engine never became idle again"),  # not even after it had brought the bytes
        ([0xFFFC, 0xFFFC, 0xFFF8], 0xFFF8, "the engine never became idle again"),
        ([0xFFFC, 0xFFF8, 0xFFFC, 0xFFF8, 0xFFF8, 0xFFFC], 0xFFF8, ""),
    ],
)
def test_a_kernel_in_an_engines_place_is_found_out(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, masks: list[int], held: int, why: str
) -> None:
    left = list(masks)
    monkeypatch.setattr(runtime, "idle_engines", lambda dst, src: left.pop(0) if len(left) > 1 else left[0])
    proof = prove_engine(runtime, runtime.gpus[1], runtime.gpus[0], 2, SOON_S)
    assert (proof.failure, proof.proven) == (f"a kernel on compute units did the copy: {why}" if why else "", not why)
    assert (proof.before, proof.held, proof.after) == (masks[0], held, masks[-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nth", [0, 1, 2], ids=["to the source", "between the GPUs", "back to the host"])
@pytest.mark.parametrize("fault", [Fault.CORRUPT, Fault.DROP])
def test_an_engine_that_moves_other_bytes_is_not_proven(
    runtime: Runtime, control: Control, mode: str, fault: Fault, nth: int
) -> None:
    """Its signal counts down and its masks are right. What proofs before it left in the same memory does not count."""
    ends = runtime.gpus[1], runtime.gpus[0]
    copier = 0 if mode == "push" else 1
    assert prove_engine(runtime, *ends, 2, SOON_S, mode).proven
    control.fault(fault, gpu=copier, engine=2, nth=nth)
    proof = prove_engine(runtime, *ends, 2, SOON_S, mode)
    wrong = re.fullmatch(r"(\d+) of the 64 bytes that it copied are wrong", proof.failure)
    assert wrong, proof.failure
    assert int(wrong[1]) == 1 if fault == Fault.CORRUPT else int(wrong[1]) > 50
    assert proof.alone
    control.fault(fault, gpu=copier, engine=2, nth=nth)
    engines = choose_engines(runtime, runtime.gpus[:2], mode)
    assert [choice.engine for choice in engines if choice.copier == copier] == [4]
    assert "bytes that it copied are wrong" in engines.dropped[0]


@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize(("fault", "kept"), [(Fault.SUBMIT_ERROR, 0), (Fault.ENGINE_ERROR, 3), (Fault.HANG, 3)])
def test_what_a_failing_engine_may_still_touch_is_not_given_back(
    runtime: Runtime, control: Control, monkeypatch: pytest.MonkeyPatch, fault: Fault, kept: int, nth: int
) -> None:
    made, freed = [], []
    allocate, free = runtime.allocate, runtime.free
    monkeypatch.setattr(runtime, "allocate", lambda *given: made.append(allocate(*given)) or made[-1])
    monkeypatch.setattr(runtime, "free", lambda buffer: freed.append(buffer) or free(buffer))
    control.fault(fault, gpu=0, engine=2, nth=nth)
    assert not prove_engine(runtime, runtime.gpus[1], runtime.gpus[0], 2, 0.05).proven
    assert (len(made), len(made) - len(freed)) == (3, kept)


def test_a_busy_engine_is_not_accepted(runtime: Runtime, control: Control) -> None:
    control.fault(Fault.BUSY, gpu=0, engine=2)
    proof = prove_engine(runtime, runtime.gpus[1], runtime.gpus[0], 2, SOON_S)
    assert "not among the engines that are idle" in proof.failure
    engines = choose_engines(runtime, runtime.gpus[:2])
    assert [(choice.engine, choice.how) for choice in engines] == [(4, "chosen"), (2, "preferred")]


def test_no_engine_left_is_the_end(runtime: Runtime, control: Control) -> None:
    control.fault(Fault.BUSY, gpu=1, engine=-1)
    with pytest.raises(C3Error, match="GPU 1 has no SDMA engine that reaches GPU 0: none is idle for it"):
        choose_engines(runtime, runtime.gpus[:2])


def faulty_copies(
    runtime: Runtime, control: Control, monkeypatch: pytest.MonkeyPatch, kinds: Callable[[int], Fault]
) -> None:
    """Let every copy on an engine of GPU 0 meet the fault that ``kinds`` names for the engine."""
    copy = runtime.copy

    def faulty(dst: int, dst_gpu: object, src: int, src_gpu: object, nbytes: int, done: Signal, engine: int, *more):
        control.fault(kinds(engine), gpu=0, engine=engine)
        return copy(dst, dst_gpu, src, src_gpu, nbytes, done, engine, *more)

    monkeypatch.setattr(runtime, "copy", faulty)


def test_engines_that_all_hang_are_counted_and_one_is_shown(
    runtime: Runtime, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_copies(runtime, control, monkeypatch, lambda engine: Fault.HANG)
    with pytest.raises(C3Error) as caught:
        choose_engines(runtime, runtime.gpus[:2], limit_s=0.02)
    said = str(caught.value)
    assert said.startswith(
        "amd: GPU 0 has no SDMA engine that reaches GPU 1: 14 engines fail alike, the first: engine 2 of GPU 0 "
        "for GPU 1 failed: a copy of 64 bytes on it did not end within 0.02 s"
    )
    assert said.count("did not end") == 1
    assert len(said) < 450


def test_engines_that_fail_of_several_causes_are_grouped_by_them(
    runtime: Runtime, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty_copies(runtime, control, monkeypatch, lambda e: Fault.HANG if e == 6 else Fault.ENGINE_ERROR)
    with pytest.raises(C3Error) as caught:
        choose_engines(runtime, runtime.gpus[:2], limit_s=0.02)
    common, rare = str(caught.value).split("; engine 6")
    assert "13 engines fail alike, the first: engine 2 of GPU 0 for GPU 1 failed: a copy of 64 bytes on it f" in common
    assert rare.startswith(" of GPU 0 for GPU 1 failed: a copy of 64 bytes on it did not end within 0.02 s")


def test_of_failures_that_are_all_different_three_are_shown(runtime: Runtime) -> None:
    proofs = [EngineProof(0, 1, engine, 0xFFFC, 0, 0, f"cause {engine}") for engine in range(2, 16)]
    said = _grouped(proofs)
    assert [f"cause {engine} " in said for engine in range(2, 16)] == [True] * 3 + [False] * 11
    assert said.endswith("; 11 more failed otherwise")


@pytest.mark.parametrize("name", ["HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA"])
def test_an_environment_without_engines_is_refused(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "0")
    with pytest.raises(C3Error, match=f"{name}=0 .*unset it"):
        choose_engines(runtime, runtime.gpus[:2])


def test_gpus_of_two_kinds_are_refused(runtime: Runtime) -> None:
    other = replace(runtime.gpus[1], peer_engines=0)
    with pytest.raises(C3Error, match=r"differ in their engines .*0 peer engines.*14 peer engines"):
        choose_engines(runtime, [runtime.gpus[0], other])


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_plans_that_do_not_fit_are_refused(runtime: Runtime) -> None:
    gpus = runtime.gpus
    with pytest.raises(C3Error, match="topology 'host'"):
        Buffers(runtime, gpus[:2], build_plan("all-gather", 4096, 2, "host"))
    with pytest.raises(C3Error, match="expected 4 different GPUs"):
        Buffers(runtime, gpus[:2], build_plan("all-gather", 4096, 4))
    with pytest.raises(C3Error, match="expected 2 different GPUs"):
        Buffers(runtime, [gpus[0], gpus[0]], build_plan("all-gather", 4096, 2))
    with pytest.raises(C3Error, match="moves nothing over a link"):
        Buffers(runtime, gpus[:1], build_plan("all-gather", 4096, 1))
    plan = build_plan("all-gather", 4096, 2)
    outside = plan.copies.copy()
    outside["dst_offset"][1] += 1
    with pytest.raises(C3Error, match=r"overruns|overlaps|never"):
        Buffers(runtime, gpus[:2], replace(plan, copies=outside))
    buffers = Buffers(runtime, gpus[:2], plan)
    with pytest.raises(C3Error, match=r"needs engines proven to push for 2 ranks, these are to pull for 2"):
        SdmaCopies(buffers, engines_for(runtime, 2, "pull"))
    with pytest.raises(C3Error, match=r"drop: .* has 2 copies over links, got index 2"):
        SdmaCopies(buffers, engines_for(runtime, 2, "push"), drop=2)
    buffers.close()
