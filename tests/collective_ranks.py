"""What one rank does in the tests of the collectives, and how its process is started; for CPUs and GPUs alike.

Run as a program this is one rank: it does the cases asked for, each in a process group of its own, and writes what each
gave or raised to a file. A case compares bytes with what torch.distributed's gloo makes of the same inputs on the CPU.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
CASES: dict[str, Callable] = {}
POISON = 0x5A


def launch(
    folder: Path, world: int, device: str, cases: list[str], limit_s: float, **settings: str
) -> list[dict[str, Any]]:
    """Run cases in ``world`` processes; by rank, what each gave (``value``) or raised (``error``), and the ``pid``.

    ``device``: "cpu", "cuda" (a GPU for each rank) or "cuda-shared" (one for all); ``settings`` go to the environment.
    Raises AssertionError with the end of what they printed when a process fails or is not through after ``limit_s``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # More hardware queues than streams, so that no stream waits for another one's flag.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_DEVICE_MAX_CONNECTIONS": "32", "OMP_NUM_THREADS": "1"}
    env |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **settings}
    if device == "cuda-shared":
        env["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    # Without a GPU one process loads all that is needed and forks into the ranks: most of the time is that of loading.
    starts = [",".join(map(str, range(world)))] if device == "cpu" else [str(rank) for rank in range(world)]
    end, processes = time.monotonic() + limit_s, []
    for ranks in starts:
        command = [sys.executable, __file__, ranks, str(world), device, str(folder), *cases]
        with open(folder / f"{ranks.split(',')[0]}.log", "w") as log:
            processes.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
    finally:
        codes = [process.poll() for process in processes]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    logs = [log.read_text()[-3000:] for log in sorted(folder.glob("*.log"))]
    assert codes == [0] * len(starts), f"exit codes {codes} (None: killed after {limit_s} s)\n" + "\n---\n".join(logs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def case(function: Callable) -> Callable:
    """A case for any device."""
    CASES[function.__name__] = function
    return function


def case_on(device: str) -> Callable:
    """A case for one kind of device only."""

    def known(function: Callable) -> Callable:
        function.only = device
        return case(function)

    return known


def cases_for(device: str) -> list[str]:
    return [name for name, function in CASES.items() if getattr(function, "only", device) == device]


@dataclass
class Rank:
    """What a case works with."""

    torch: Any
    dist: Any
    c3: Any
    rank: int
    world: int
    device: Any
    group: Any
    folder: Path

    def random(self, count: int, dtype: Any, seed: int = 0) -> Any:
        """Random bytes as a tensor of ``count`` elements, other ones on each rank."""
        generator = self.torch.Generator().manual_seed(1000 * seed + self.rank)
        values = self.torch.randint(0, 2, (count,), generator=generator).bool()
        if dtype != self.torch.bool:
            nbytes = count * dtype.itemsize
            values = self.torch.randint(0, 256, (nbytes,), generator=generator).to(self.torch.uint8).view(dtype)
        return values.to(self.device)

    def empty(self, count: int, dtype: Any, registered: bool) -> Any:
        make = self.torch.empty if not registered else lambda *a, **k: self.c3.empty(*a, **k, group=self.group)
        tensor = make(count, dtype=dtype, device=self.device)
        self.bytes(tensor).fill_(POISON)
        return tensor

    def bytes(self, tensor: Any) -> Any:
        return tensor.reshape(-1).view(self.torch.uint8)

    def gathered(self, source: Any) -> Any:
        """The bytes that an all-gather gives, by gloo on the CPU."""
        mine = self.bytes(source).cpu()
        found = [self.torch.empty_like(mine) for _ in range(self.dist.get_world_size(self.group))]
        self.dist.all_gather(found, mine, group=self.group)
        return self.torch.cat(found)

    def exchanged(self, source: Any, receives: list[int] | None = None, sends: list[int] | None = None) -> Any:
        """The bytes that an all-to-all gives, by gloo on the CPU; splits in bytes."""
        mine = self.bytes(source).cpu()
        found = self.torch.empty(sum(receives) if receives else mine.numel(), dtype=self.torch.uint8)
        self.dist.all_to_all_single(found, mine, receives, sends, group=self.group)
        return found

    def same(self, found: Any, wanted: Any, what: object) -> None:
        assert self.torch.equal(self.bytes(found).cpu(), wanted), what

    def barrier(self) -> None:
        """On the host: the GPU goes on."""
        self.dist.all_reduce(self.torch.zeros(1), group=self.group)


class NotFound(AssertionError):
    """A call that must fail did not."""


def sentence(call: Callable) -> str:
    """What a call that must fail says."""
    from c3lib.errors import C3Error

    try:
        call()
    except C3Error as error:
        return str(error)
    raise NotFound("it did not fail")


# --- bytes ---


@case
def all_gather(r: Rank) -> None:
    torch = r.torch
    dtypes = (torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.complex64)
    for number, (count, registered, in_place) in enumerate(
        itertools.product((0, 1, 7, 4099, 300_007), (False, True), (False, True))
    ):
        dtype = dtypes[number % len(dtypes)]
        output = r.empty(count * r.world, dtype, registered)
        source = r.random(count, dtype, number)
        wanted = r.gathered(source)
        if in_place:
            own = output[r.rank * count : (r.rank + 1) * count]
            source = own.copy_(source)
        assert r.c3.all_gather_into_tensor(output, source, group=r.group) is None
        r.same(output, wanted, (count, dtype, registered, in_place))


@case
def all_gather_forms(r: Rank) -> None:
    source = r.random(6 * 5, r.torch.float32).reshape(6, 5)
    wanted = r.gathered(source)
    for shape in ((6 * r.world, 5), (r.world, 6, 5)):
        output = r.torch.empty(shape, device=r.device)
        r.c3.all_gather_into_tensor(output, source, r.group)
        r.same(output, wanted, shape)
    output, scalar = r.torch.empty(r.world, device=r.device), r.random(1, r.torch.float32).reshape(())
    r.c3.all_gather_into_tensor(output, scalar, r.group)
    r.same(output, r.gathered(scalar.reshape(1)), "scalar")


@case
def all_to_all(r: Rank) -> None:
    torch = r.torch
    for number, (rows, columns, registered) in enumerate(
        itertools.product((0, 1, 13, 1009), (1, 7, 64), (False, True))
    ):
        dtype = (torch.float16, torch.int8, torch.float64)[number % 3]
        source = r.random(rows * r.world * columns, dtype, number).reshape(rows * r.world, columns)
        output = r.empty(source.numel(), dtype, registered).reshape(source.shape)
        r.c3.all_to_all_single(output, source, group=r.group)
        r.same(output, r.exchanged(source), (rows, columns, registered))


@case
def all_to_all_uneven(r: Rank) -> None:
    """Blocks of 0, 1, many rows, other ones in each round; the last round moves nothing at all."""
    for turn, (columns, registered) in enumerate(itertools.product((1, 3), (False, True))):
        table = [
            [(5 * src + 3 * dst + turn) % 7 * (37 if turn else 1) for dst in range(r.world)] for src in range(r.world)
        ]
        sends, receives = table[r.rank], [row[r.rank] for row in table]
        source = r.random(sum(sends) * columns, r.torch.float32, turn).reshape(-1, columns)
        # Registered memory is of one size on all ranks; each takes as much of it as it needs.
        room = r.empty(
            37 * 7 * r.world * columns if registered else sum(receives) * columns, r.torch.float32, registered
        )
        output = room[: sum(receives) * columns].reshape(-1, columns)
        r.c3.all_to_all_single(output, source, receives, sends, group=r.group)
        rows = [4 * columns * count for count in receives], [4 * columns * count for count in sends]
        r.same(output, r.exchanged(source, *rows), (turn, columns, registered))
    none = [0] * r.world
    nothing = r.empty(0, r.torch.float32, False)
    r.c3.all_to_all_single(nothing, nothing.clone(), none, none, group=r.group)


@case
def parts_of_registered(r: Rank) -> None:
    """Any part of registered memory will do, if it is the same part on all ranks."""
    room = r.empty(10_000 * r.world, r.torch.uint8, True)
    for first, count in ((0, 1000), (13, 1001), (4096, 9)):
        source = r.random(count, r.torch.uint8, first)
        r.bytes(room).fill_(POISON)
        r.c3.all_gather_into_tensor(room[first : first + count * r.world], source, r.group)
        r.same(room[first : first + count * r.world], r.gathered(source), first)
        assert bool((room[:first] == POISON).all())
        assert bool((room[first + count * r.world :] == POISON).all())


@case
def reused_buffers(r: Rank) -> None:
    """100 rounds in the same buffers, the input overwritten at once, ranks out of step by chance."""
    count = 5003
    output, source = r.empty(count * r.world, r.torch.int32, True), r.empty(count, r.torch.int32, False)
    other = r.empty(count * r.world, r.torch.int32, True)
    for turn in range(100):
        target = (output, other)[turn % 2]
        source.copy_(r.torch.arange(count) + 1_000_000 * r.rank + 7919 * turn)
        if (turn * 7 + r.rank * 5) % 11 == 0:
            time.sleep(0.002)
        r.c3.all_gather_into_tensor(target, source, r.group)
        source.fill_(-1)
        wanted = [r.torch.arange(count) + 1_000_000 * rank + 7919 * turn for rank in range(r.world)]
        r.same(target, r.bytes(r.torch.cat(wanted).to(r.torch.int32)), turn)


@case
def asynchronous(r: Rank) -> None:
    """Several under way at once, registered and not, waited for in another order; a call that waits comes last."""
    sources = [r.random(3001 + number, r.torch.float32, number) for number in range(4)]
    wanted = [r.gathered(source) for source in sources]
    outputs = [r.empty(source.numel() * r.world, r.torch.float32, n % 2 == 0) for n, source in enumerate(sources)]
    works = [
        r.c3.all_gather_into_tensor(output, source, r.group, async_op=True)
        for output, source in zip(outputs[:3], sources[:3], strict=True)
    ]
    assert all(isinstance(work, r.dist.Work) for work in works)
    r.c3.all_gather_into_tensor(outputs[3], sources[3], r.group)
    r.same(outputs[3], wanted[3], "the last")
    for number in (2, 0, 1):
        assert works[number].wait() is True
        r.same(outputs[number], wanted[number], number)
    r.c3.check(10, r.group)
    assert all(work.is_completed() for work in works)


@case
def subgroup(r: Rank) -> list:
    """Ranks in another order of the group than of the world, and a group of one rank."""
    members = list(range(1, r.world))
    some = r.dist.new_group(members)
    alone = [r.dist.new_group([rank]) for rank in range(r.world)][r.rank]
    said = []
    if r.rank == 0:  # outside
        hook = r.c3.CopyEngineAllGather(some)
        said.append(sentence(lambda: hook.allocate((5,), dtype=r.torch.float32, device=r.device)))
        said.append(sentence(lambda: r.c3.empty(5, device=r.device, group=some)))
        r.c3.check(1, some)
        r.c3.destroy(some)
    source = r.random(1013, r.torch.float32)
    output = r.empty(1013 * len(members), r.torch.float32, False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        r.c3.all_gather_into_tensor(output, source, some)
    wanted = r.gathered(source)[4 * 1013 :]
    if r.rank:
        r.same(output, wanted, "subgroup")
        r.c3.destroy(some)
    single = r.empty(1013, r.torch.float32, False)
    r.c3.all_gather_into_tensor(single, source, alone)
    r.same(single, r.bytes(source).cpu(), "alone")
    r.c3.all_to_all_single(single.zero_(), source, [1013], [1013], group=alone)
    r.same(single, r.bytes(source).cpu(), "alone")
    r.c3.destroy(alone)
    return said + [str(warning.message) for warning in caught]


@contextlib.contextmanager
def a_copy_left_out(r: Rank) -> Iterator[None]:
    """Rank 0 does not copy to rank 1."""
    from c3lib.collectives import communicator

    whole = communicator.even_copies
    if r.rank == 0:
        communicator.even_copies = lambda *given: [copy for copy in whole(*given) if copy.dst_rank != 1]
    try:
        yield
    finally:
        communicator.even_copies = whole


@case
def a_dropped_copy_is_noticed(r: Rank) -> bool:
    """The control of the byte checks: only the rank that the copy was for is wrong."""
    source, output = r.random(999, r.torch.uint8), r.empty(999 * r.world, r.torch.uint8, True)
    wanted = r.gathered(source)
    with a_copy_left_out(r):
        r.c3.all_gather_into_tensor(output, source, r.group)
    return r.torch.equal(output.cpu(), wanted)


# --- refusals ---


@case
def wrong_arguments(r: Rank) -> list[str]:
    torch, world = r.torch, r.world
    x, y = torch.zeros(6, device=r.device), torch.zeros(6 * world, device=r.device)
    gather, to_all = r.c3.all_gather_into_tensor, r.c3.all_to_all_single
    calls = [
        lambda: gather([y], x, r.group),
        lambda: gather(y, x.reshape(2, 3).t(), r.group),
        lambda: gather(y[::2], x[:3], r.group),
        lambda: gather(y, x.to(torch.float64), r.group),
        lambda: gather(y.to("meta"), x, r.group),
        lambda: gather(y[1:], x, r.group),
        lambda: gather(y, y[1:7], r.group),
        lambda: gather(y.to(torch.complex64), x.to(torch.complex64).conj(), r.group),
        lambda: to_all(y, y, group=r.group),
        lambda: to_all(torch.zeros((), device=r.device), x, group=r.group),
        lambda: to_all(torch.zeros(6 * world + 1, device=r.device), y, group=r.group),
        lambda: to_all(torch.zeros(7 * world, device=r.device), y, group=r.group),
        lambda: to_all(y.clone(), y, [6] * world, [6] * (world - 1), group=r.group),
        lambda: to_all(y.clone(), y, [6] * world, [5] * world, group=r.group),
        lambda: to_all(y.clone(), y, [6.5] * world, [6] * world, group=r.group),
        lambda: r.c3.empty(-1, device=r.device, group=r.group),
        lambda: r.c3.set_timeout(0),
        lambda: r.c3.use_copy_engine_all_gather(torch.nn.Linear(2, 2)),
        lambda: gather(torch.quantize_per_tensor(y.cpu(), 1.0, 0, torch.qint8), x, r.group),
        lambda: gather(y, torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), r.group),
        lambda: gather(y, x, 5),
        lambda: to_all(y.clone(), y, torch.tensor([6] * world), [6] * world, group=r.group),
        lambda: to_all(y.clone(), y, [6] * world, 6, group=r.group),
        lambda: r.c3.empty(2.5, device=r.device, group=r.group),
        lambda: r.c3.empty(6, dtype="float32", device=r.device, group=r.group),
        lambda: r.c3.empty(6, dtype=torch.qint8, device=r.device, group=r.group),
        lambda: r.c3.empty(6, device="nowhere", group=r.group),
        lambda: r.c3.empty(6, device=f"cuda:{torch.cuda.device_count()}", group=r.group),
        lambda: r.c3.empty(2**72, device=r.device, group=r.group),
        lambda: r.c3.check("a", r.group),
        lambda: r.c3.destroy("a"),
        lambda: r.c3.CopyEngineAllGather("a"),
        lambda: r.c3.use_copy_engine_all_gather(5),
    ]
    said = [sentence(call) for call in calls]
    gather(y, x, r.group)  # and the group is none the worse
    return said


@case
def ranks_disagree(r: Rank) -> list[str]:
    """Found on all ranks alike, and the group stays of use."""
    x = r.random(6 * r.world + r.rank, r.torch.float32)
    y = r.empty(x.numel() * r.world, r.torch.float32, False)
    said = [sentence(lambda: r.c3.all_gather_into_tensor(y, x, r.group))]
    splits = [6] * r.world
    splits[0] += r.rank  # what rank 0 does not expect
    said.append(sentence(lambda: r.c3.all_to_all_single(y[: 6 * r.world], x, [6] * r.world, splits, group=r.group)))
    said.append(sentence(lambda: r.c3.empty(10 + r.rank, device=r.device, group=r.group)))
    z = r.empty(6 * r.world, r.torch.float32, False)
    if r.rank == 0:
        said.append(sentence(lambda: r.c3.all_gather_into_tensor(z, x[:6], r.group)))
    else:
        said.append(sentence(lambda: r.c3.all_to_all_single(z, x[: 6 * r.world], group=r.group)))
    r.c3.all_gather_into_tensor(z, x[:6].contiguous(), r.group)
    r.same(z, r.gathered(x[:6].contiguous()), "after it")
    return said


@case
def ranks_disagree_in_registered_memory(r: Rank) -> list[str]:
    """No rank waits for another's word there, so it is found from the notes, in this call or the next, and is final."""
    rooms = [r.empty(64 * r.world, r.torch.float32, True) for _ in range(2)]
    source, said = r.random(64, r.torch.float32), []
    for _ in range(2):
        with contextlib.suppress(NotFound):
            said.append(sentence(lambda: r.c3.all_gather_into_tensor(rooms[min(r.rank, 1)], source, r.group)))
        r.barrier()
    if r.device.type == "cuda":
        r.c3.check(20, r.group)  # nobody's stream waits for who gave up
    return said


@case
def absent_peer(r: Rank) -> list[str]:
    """Rank 0 calls and nobody else does: at set-up, telling addresses, and in registered memory."""
    x, y = r.random(64, r.torch.float32), r.empty(64 * r.world, r.torch.float32, False)
    groups = [r.dist.new_group(list(range(r.world))) for _ in range(3)]
    said = []
    for group in groups[1:]:
        r.c3.all_gather_into_tensor(y, x, group)
    registered = r.c3.empty(64 * r.world, device=r.device, group=groups[2])
    r.c3.all_gather_into_tensor(registered, x, groups[2])
    if r.rank == 0:
        r.c3.set_timeout(0.2)
        try:
            said = [sentence(lambda y=y, g=g: r.c3.all_gather_into_tensor(y, x, g)) for g in groups[:2]]
            if r.device.type == "cpu":
                said += [sentence(lambda: r.c3.all_gather_into_tensor(registered, x, groups[2]))]
                said += [sentence(lambda: r.c3.all_gather_into_tensor(registered, x, groups[2]))]
        finally:
            r.c3.set_timeout(20)
    r.barrier()
    return said


@case_on("cpu")
def absent_peer_asynchronous(r: Rank) -> list[str]:
    """The handle raises it, and says before how it stands."""
    said = []
    x, y = r.random(64, r.torch.float32), r.empty(64 * r.world, r.torch.float32, True)
    if r.rank == 0:
        r.c3.set_timeout(1)
        try:
            work = r.c3.all_gather_into_tensor(y, x, r.group, async_op=True)
            assert not work.is_completed()
            said = [sentence(lambda: r.c3.check(0.1, r.group)), sentence(work.wait)]
        finally:
            r.c3.set_timeout(20)
    r.barrier()
    return said


@case
def late_peer(r: Rank) -> list[str]:
    """check() says who is missing and harms nothing: the peer comes, and all ends well."""
    source, output = r.random(777, r.torch.float32), r.empty(777 * r.world, r.torch.float32, True)
    wanted = r.gathered(source)
    said, late = [], r.world - 1
    if r.rank != late:
        work = r.c3.all_gather_into_tensor(output, source, r.group, async_op=True)
        said = [sentence(lambda: r.c3.check(0.3, r.group))]
    r.barrier()
    if r.rank == late:
        work = r.c3.all_gather_into_tensor(output, source, r.group, async_op=True)
    work.wait()
    r.c3.check(20, r.group)
    r.same(output, wanted, "late")
    return said


@case_on("cpu")
def ctrl_c(r: Rank) -> list[str]:
    """It ends a wait for a peer that does not come."""
    x, y = r.random(64, r.torch.float32), r.empty(64 * r.world, r.torch.float32, True)
    said = []
    if r.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        start = time.monotonic()
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            r.c3.all_gather_into_tensor(y, x, r.group)
        except KeyboardInterrupt:
            said = [f"stopped {time.monotonic() - start < 5}"]
        said.append(sentence(lambda: r.c3.all_gather_into_tensor(y, x, r.group)))
    r.barrier()
    return said


@case
def destroyed(r: Rank) -> None:
    """What was registered stays readable, and the group can be used anew."""
    source, output = r.random(50, r.torch.float32), r.empty(50 * r.world, r.torch.float32, True)
    wanted = r.gathered(source)
    for _ in range(3):
        r.c3.all_gather_into_tensor(output, source, r.group)
        r.c3.destroy(r.group)
        r.same(output, wanted, "destroyed")
        r.bytes(output).fill_(POISON)


@case_on("cpu")
def numbers_wrap_around(r: Rank) -> int:
    """Collectives across number 2**32, where flags begin at 0 again."""
    from c3lib.collectives.groups import communicators

    source, output = r.random(50, r.torch.float32), r.empty(50 * r.world, r.torch.float32, True)
    wanted = r.gathered(source)
    (comm,) = communicators(r.group)
    first = 2**32 - 3
    comm._number = first
    comm.board._compared = [first] * r.world
    comm.window._signals[r.rank] = first
    r.barrier()
    for _ in range(6):
        r.bytes(output).fill_(POISON)
        r.c3.all_gather_into_tensor(output, source, r.group)
        r.same(output, wanted, comm._number)
    return comm._number


# --- streams ---


@case_on("cuda")
def stream_order(r: Rank) -> None:
    """A collective comes after what the caller's stream does before it, on any stream, and its handle's wait counts."""
    torch, count = r.torch, 1 << 20
    for turn, stream in enumerate((torch.cuda.current_stream(), torch.cuda.Stream())):
        with torch.cuda.stream(stream):
            output, source = r.empty(count * r.world, torch.int32, True), r.empty(count, torch.int32, False)
            for registered in (output, torch.full_like(output, -2)):
                torch.cuda._sleep(100_000_000)  # about 50 ms
                source.fill_(10 * r.rank + turn)
                work = r.c3.all_gather_into_tensor(registered, source, r.group, async_op=True)
                work.wait()
                source.fill_(-1)
                wanted = torch.arange(r.world, dtype=torch.int32).mul(10).add(turn).repeat_interleave(count)
                assert torch.equal(registered.cpu(), wanted), (turn, registered is output)


@case_on("cuda")
def caller_is_not_held_up(r: Rank) -> list[bool]:
    """While a peer is late the caller's stream goes on, and what the caller drops is not given to anyone else."""
    torch, late, count = r.torch, r.world - 1, 1 << 20
    output = r.empty(count * r.world, torch.int32, True)
    source = torch.full((count,), r.rank, dtype=torch.int32, device=r.device)
    torch.cuda.synchronize()
    over = []
    if r.rank != late:
        work = r.c3.all_gather_into_tensor(output, source, r.group, async_op=True)
        del source
        others = [torch.full((count,), -7, dtype=torch.int32, device=r.device) for _ in range(4)]
        torch.cuda.current_stream().synchronize()  # for ever, if it waited for the peer
        over.append(work.is_completed())
        del others
    r.barrier()
    if r.rank == late:
        work = r.c3.all_gather_into_tensor(output, source, r.group, async_op=True)
    work.wait()
    wanted = torch.arange(r.world, dtype=torch.int32).repeat_interleave(count)
    assert torch.equal(output.cpu(), wanted)
    r.c3.check(10, r.group)
    return [*over, work.is_completed()]


@case_on("cuda")
def signals_by_copy(r: Rank) -> list[bool]:
    """Where the driver refuses to write to a peer's flag the signals are copied there."""
    from c3lib.collectives.groups import communicators

    output = r.empty(5000 * r.world, r.torch.uint8, True)
    (comm,) = communicators(r.group)
    usual, comm.window.writes_values = comm.window.writes_values, False
    for turn in range(20):
        source = r.random(5000, r.torch.uint8, turn)
        wanted = r.gathered(source)
        r.c3.all_gather_into_tensor(output, source, r.group)
        r.same(output, wanted, turn)
    return [usual]


@case_on("cuda")
def from_a_thread(r: Rank) -> None:
    """As in a backward pass: a thread that has not used the GPU yet."""
    source, output = r.random(5000, r.torch.uint8), r.empty(5000 * r.world, r.torch.uint8, False)
    wanted, error = r.gathered(source), []
    r.c3.all_gather_into_tensor(output, source, r.group)
    r.bytes(output).fill_(POISON)
    r.torch.cuda.synchronize()

    def body() -> None:
        try:
            r.c3.all_gather_into_tensor(output, source, r.group)
            r.torch.cuda.synchronize()
        except BaseException:
            error.append(traceback.format_exc())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert not error, error
    r.same(output, wanted, "thread")


@case_on("cuda")
def no_graph(r: Rank) -> list[str]:
    source, output = r.random(64, r.torch.float32), r.empty(64 * r.world, r.torch.float32, True)
    r.c3.all_gather_into_tensor(output, source, r.group)
    r.torch.cuda.synchronize()
    graph = r.torch.cuda.CUDAGraph()
    with r.torch.cuda.stream(r.torch.cuda.Stream()):
        graph.capture_begin()
        said = sentence(lambda: r.c3.all_gather_into_tensor(output, source, r.group))
        graph.capture_end()
    r.c3.all_gather_into_tensor(output, source, r.group)
    r.same(output, r.gathered(source), "after it")
    return [said]


@case_on("cuda")
def memory_that_cannot_be_shared(r: Rank) -> list[str]:
    """Run with expandable segments: refused with what to do, while registered memory works beside them."""
    source = r.random(64, r.torch.float32)
    output = r.torch.empty(64 * r.world, device=r.device)
    said = [sentence(lambda: r.c3.all_gather_into_tensor(output, source, r.group))]
    registered = r.empty(64 * r.world, r.torch.float32, True)
    r.c3.all_gather_into_tensor(registered, source, r.group)
    r.same(registered, r.gathered(source), "registered")
    return said


@case_on("cuda")
def what_ran(r: Rank) -> list[str]:
    """What the profiler saw on the GPU of an all-gather in place."""
    from torch.profiler import ProfilerActivity, profile

    count = 1 << 20
    output = r.empty(count * r.world, r.torch.uint8, True)
    own = output[r.rank * count : (r.rank + 1) * count]
    r.c3.all_gather_into_tensor(output, own, r.group)
    r.torch.cuda.synchronize()
    r.barrier()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        r.c3.all_gather_into_tensor(output, own, r.group)
        r.torch.cuda.synchronize()
    return [event.name for event in seen.events() if event.device_type == r.torch.autograd.DeviceType.CUDA]


# --- FSDP2 ---


@case
def fsdp(r: Rank) -> dict[str, list[float]]:
    """Losses of some steps, plain and with the hook, in FSDP2's ways of gathering ahead; and with a copy left out."""
    found = {"implicit plain": _losses(r, False, "implicit")}
    found |= {f"{how} hook": _losses(r, True, how) for how in ("implicit", "ahead", "asynchronous", "kept")}
    with a_copy_left_out(r):
        found["broken"] = _losses(r, True, "implicit")
    return found


def _losses(r: Rank, hooked: bool, how: str) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch, nn = r.torch, r.torch.nn
    torch.manual_seed(7)
    layers = [nn.TransformerEncoderLayer(24, 3, 35, dropout=0.0, batch_first=True) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(29, 24), *layers, nn.Linear(24, 29)).to(r.device)
    mesh = init_device_mesh(r.device.type, (r.world,))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=how != "kept")
    fully_shard(model, mesh=mesh)
    if how == "ahead":
        for place in range(len(model) - 2):
            model[place].set_modules_to_forward_prefetch([model[place + 1], model[place + 2]])
            model[place + 2].set_modules_to_backward_prefetch([model[place + 1], model[place]])
    if how == "asynchronous":
        model._set_unshard_async_op(True)
    if r.device.type == "cuda":
        _through_the_host(r, model)
    if hooked:
        assert r.c3.use_copy_engine_all_gather(model) is model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(3):
        generator = torch.Generator().manual_seed(100 * step + r.rank)
        words = torch.randint(0, 29, (3, 11), generator=generator).to(r.device)
        logits = model(words)
        loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 29), words[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    if hooked:
        from c3lib.collectives.groups import communicators

        (comm,) = communicators(mesh.get_group())
        assert comm._number >= 4 * len(layers), "the hook was not used"
        assert 1 <= len(comm.regions) <= 4, "its memory was not registered, or is not used again"
    return found


def _through_the_host(r: Rank, model: Any) -> None:
    """Plain collectives for processes that share a GPU, where NCCL refuses to run: through gloo on the host."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

    torch, dist = r.torch, r.dist

    class Allocate:
        def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
            return torch.empty(size, dtype=dtype, device=device)

    class HostAllGather(Allocate, AllGather):
        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> None:
            mine = input_tensor.cpu()
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, mine, group=group)
            output_tensor.copy_(torch.cat(parts))

    class HostReduceScatter(Allocate, ReduceScatter):
        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False) -> None:
            whole, ranks = input_tensor.cpu(), dist.get_world_size(group)
            dist.all_reduce(whole, group=group)
            part = whole.chunk(ranks)[dist.get_rank(group)]
            output_tensor.copy_(part / ranks if op == dist.ReduceOp.AVG else part)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(HostAllGather())
            module.set_custom_reduce_scatter(HostReduceScatter())


# --- one rank ---


def main(rank: int, world: int, device_type: str, folder: Path, names: list[str]) -> None:
    import torch
    import torch.distributed as dist

    import c3lib.collectives as c3

    warnings.simplefilter("ignore", FutureWarning)
    device = torch.device("cpu")
    if device_type != "cpu":
        device = torch.device("cuda", rank if device_type == "cuda" else 0)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        torch.use_deterministic_algorithms(True, warn_only=True)
        for kind in ("flash", "mem_efficient", "cudnn"):  # whose backward pass adds in any order
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=world)
    c3.set_timeout(20)
    found: dict[str, Any] = {"pid": os.getpid()}
    for name in names:
        group = dist.new_group(list(range(world)))
        start = time.monotonic()
        try:
            found[name] = {"value": CASES[name](Rank(torch, dist, c3, rank, world, device, group, folder))}
        except BaseException:
            found[name] = {"error": traceback.format_exc()}
        found[name]["time_s"] = round(time.monotonic() - start, 2)
        print(name, found[name], flush=True)
        dist.all_reduce(torch.zeros(1))  # cases begin together
    (folder / f"{rank}.json").write_text(json.dumps(found))
    c3.destroy()
    dist.destroy_process_group()


def fork(ranks: list[int], folder: Path, *given: Any) -> None:
    """Each rank in a process of its own, forked once everything is loaded; exits with an error when one does."""
    import torch._dynamo  # what torch would load with the first optimizer
    import torch.distributed.fsdp  # noqa: F401

    import c3lib.collectives  # noqa: F401

    processes = [
        multiprocessing.get_context("fork").Process(target=logged, args=(rank, folder, *given)) for rank in ranks
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))


def logged(rank: int, folder: Path, world: int, device: str, names: list[str]) -> None:
    with open(folder / f"{rank}.log", "a") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    main(rank, world, device, folder, names)


if __name__ == "__main__":
    of, at = [int(rank) for rank in sys.argv[1].split(",")], Path(sys.argv[4])
    if len(of) > 1:
        fork(of, at, int(sys.argv[2]), sys.argv[3], sys.argv[5:])
    else:
        main(of[0], int(sys.argv[2]), sys.argv[3], at, sys.argv[5:])
