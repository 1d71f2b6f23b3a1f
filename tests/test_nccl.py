"""NCCL driven from one thread, against a stand-in that notes every call and what was the current GPU in it."""

import ctypes
import gc
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from c3lib.cuda import nccl, nccl_library
from c3lib.cuda.nccl import SHORT_NBYTES, VARIANTS, Clique, Nccl
from c3lib.cuda.nccl_library import Config, UniqueId, group, load_library, new_config, version_text
from c3lib.errors import C3Error
from c3lib.transfer import POISON
from c3lib.transfer.builders import build_plan

BASE = 1 << 40  # where the stand-in's memory begins
STREAMS = [SimpleNamespace(handle=900), SimpleNamespace(handle=901)]


class Library:
    """NCCL's functions by name: each notes its plain arguments; ``fails`` names one that refuses."""

    def __init__(self, version=22809, fails=None, windows=True):
        self.version, self.fails, self.windows = version, fails, windows
        self.said, self.current, self.made, self.config = [], [], 0, None

    def ncclGetErrorString(self, status):
        return {3: b"internal error", 5: b"invalid usage"}[status]

    def ncclGetLastError(self, comm):
        return b"rank 1 is \xff away\n"

    def __getattr__(self, name):
        if not name.startswith("nccl"):
            raise AttributeError(name)

        def function(*arguments):
            self.said.append((name, self.current[-1] if self.current else None, *map(self._plain, arguments)))
            if name == self.fails:
                return 5
            if name == "ncclGetVersion":
                arguments[0]._obj.value = self.version
            elif name == "ncclCommInitRankConfig":
                self.config = Config.from_buffer_copy(arguments[4]._obj)
                arguments[0]._obj.value = 50 + arguments[3]
            elif name == "ncclCommWindowRegister" and self.windows:
                arguments[3]._obj.value = 70 + arguments[0].value
            elif name == "ncclMemAlloc":
                self.made += 1
                arguments[0]._obj.value = BASE + self.made * 4096
            return 0

        return function

    @staticmethod
    def _plain(argument):
        if isinstance(argument, ctypes.c_void_p):
            return argument.value
        return argument if isinstance(argument, int) else type(argument).__name__

    def names(self):
        return [each[0] for each in self.said]

    def calls(self, *names):
        return [each for each in self.said if each[0] in names]


class Tensor:
    """Bytes at an address that notes what it is filled with."""

    def __init__(self, address, nbytes, owner=None):
        self.address, self.nbytes, self.owner, self.filled = address, nbytes, owner, []

    def data_ptr(self):
        return self.address

    def numel(self):
        return self.nbytes

    def fill_(self, value):
        self.filled.append(value)


def gpus(library, count=2):
    """GPUs of which only the number exists; which one is current is noted in the library."""

    def gpu(index):
        @contextmanager
        def current():
            library.current.append(index)
            yield
            library.current.pop()

        def as_tensor(owner, device):
            return Tensor(owner.__cuda_array_interface__["data"][0], owner.__cuda_array_interface__["shape"][0], owner)

        cuda = SimpleNamespace(synchronize=lambda device: library.said.append(("synchronize", device)))
        torch = SimpleNamespace(as_tensor=as_tensor, cuda=cuda)
        return SimpleNamespace(index=index, current=current, torch=torch)

    return [gpu(index) for index in range(count)]


@pytest.fixture(autouse=True)
def own_streams(monkeypatch):
    """Streams of the first run: handles 800, 801, ... by GPU."""

    def new_stream(cuda):
        return SimpleNamespace(handle=800 + cuda.index, sync=lambda: None)

    monkeypatch.setattr(nccl, "new_stream", new_stream)


def clique(variant="nccl", ctas=0, count=2, **how):
    library = Library(**how)
    made = Clique(gpus(library, count), variant, ctas, library=library)
    library.said.clear()
    return made, library


def buffers_of(kind="all-gather", nbytes=2048, ranks=2, topology="mesh"):
    plan = build_plan(kind, nbytes, ranks, topology)
    return SimpleNamespace(
        plan=plan,
        send=[Tensor(BASE + (2 * rank << 20), nbytes) for rank, nbytes in enumerate(plan.src_nbytes)],
        receive=[Tensor(BASE + (2 * rank + 1 << 20), nbytes) for rank, nbytes in enumerate(plan.dst_nbytes)],
    )


def at(buffer, offset=0):
    return buffer.address + offset


# --- the config -------------------------------------------------------------------------------------------------------

FIELDS = """size_t size; unsigned int magic; unsigned int version; int blocking; int cgaClusterSize; int minCTAs;
int maxCTAs; const char *netName; int splitShare; int trafficClass; const char *commName; int collnetEnable;
int CTAPolicy; int shrinkShare; int nvlsCTAs; int nChannelsPerNetPeer; int nvlinkCentricSched;"""
"""ncclConfig_v22800, from the header of NCCL 2.28.9."""


def test_an_older_library_is_taken_where_less_of_it_is_used():
    def made(version, **oldest):
        library = Library(version)
        return Clique(gpus(library), library=library, **oldest)

    with pytest.raises(C3Error, match=r"NCCL 2\.22\.3; zero CTAs and ncclAlltoAll need at least 2\.28\.0"):
        made(22203)
    assert made(22203, oldest=21400).version == "2.22.3"
    with pytest.raises(C3Error, match=r"NCCL 2\.13\.4; what is used of it needs at least 2\.14\.0"):
        made(21304, oldest=21400)


def test_the_config_is_laid_out_as_in_c():
    offset, widest = 0, 1
    declared = [field.strip().replace("*", "* ").rsplit(" ", 1) for field in FIELDS.split(";") if field.strip()]
    assert [name for _, name in declared] == [name for name, *_ in Config._fields_]
    for kind, name in declared:
        width = 8 if "*" in kind or kind == "size_t" else 4
        offset += -offset % width
        assert (getattr(Config, name).offset, getattr(Config, name).size) == (offset, width), name
        offset, widest = offset + width, max(widest, width)
    assert ctypes.sizeof(Config) == offset + -offset % widest == 80


def test_a_config_leaves_to_nccl_what_is_not_chosen():
    config = new_config(blocking=1, CTAPolicy=2)
    assert (config.size, config.magic, config.version) == (80, 0xCAFEBEEF, 22800)
    told = {name: getattr(config, name) for name, *_ in Config._fields_[3:]}
    assert (told.pop("blocking"), told.pop("CTAPolicy")) == (1, 2)
    assert (told.pop("netName"), told.pop("commName")) == (None, None)
    assert set(told.values()) == {-(2**31)}
    with pytest.raises(C3Error, match="mincta"):
        new_config(mincta=1)


def test_the_id_has_the_size_that_is_passed_by_value():
    assert ctypes.sizeof(UniqueId) == 128


# --- the library ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_library(monkeypatch):
    """A machine on which no NCCL is found; returns what was tried, as (name, mode)."""
    tried = []

    def refuse(name, mode):
        tried.append((name, mode))
        raise OSError(name)

    monkeypatch.setattr(nccl_library.ctypes, "CDLL", refuse)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")  # given back at the end
    load_library.cache_clear()
    yield tried
    load_library.cache_clear()


def test_a_missing_library_is_said_and_the_loaded_one_is_tried_first(no_library, monkeypatch):
    wheel = SimpleNamespace(submodule_search_locations=["wheel"])
    monkeypatch.setattr(nccl_library, "find_spec", lambda name: wheel if name == "nvidia.nccl" else None)
    with pytest.raises(C3Error, match=r"libnccl\.so\.2 is neither loaded by torch nor found"):
        load_library()
    names = [name for name, _ in no_library]
    assert names == ["libnccl.so.2", "wheel/lib/libnccl.so.2", "libnccl.so.2"]
    assert no_library[0][1] != no_library[2][1], "the first try may not load another library than torch's"


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_the_user_says_of_multicast_stands(no_library, monkeypatch, value):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", value)
    with pytest.raises(C3Error):
        load_library()
    assert nccl_library.os.environ["NCCL_NVLS_ENABLE"] == value


def test_multicast_is_off_if_nobody_says_anything(no_library, monkeypatch):
    monkeypatch.delenv("NCCL_NVLS_ENABLE")
    with pytest.raises(C3Error):
        load_library()
    assert nccl_library.os.environ["NCCL_NVLS_ENABLE"] == "0"


def test_an_old_library_is_refused_with_both_versions():
    with pytest.raises(C3Error, match=r"NCCL 2\.27\.3; .* at least 2\.28\.0"):
        clique(version=22703)
    assert [version_text(version) for version in (22809, 22800, 23203)] == ["2.28.9", "2.28.0", "2.32.3"]


def test_a_refusal_has_the_words_of_nccl_and_the_group_is_ended():
    library = Library(fails="ncclCommInitRankConfig")
    with pytest.raises(C3Error) as error:
        Clique(gpus(library), library=library)
    assert str(error.value) == (
        "nccl: making 2 communicators failed in ncclCommInitRankConfig: invalid usage (rank 1 is � away)"
    )
    assert library.names()[-3:] == ["ncclGroupStart", "ncclCommInitRankConfig", "ncclGroupEnd"]


def test_a_group_is_ended_on_any_error_and_only_once():
    library = Library()
    with pytest.raises(KeyError), group(library, "a test"):
        raise KeyError
    assert library.names() == ["ncclGroupStart", "ncclGroupEnd"]
    library = Library(fails="ncclGroupEnd")
    with pytest.raises(C3Error, match="a test failed in ncclGroupEnd"), group(library, "a test"):
        pass
    assert library.names() == ["ncclGroupStart", "ncclGroupEnd"]
    library = Library(fails="ncclGroupStart")
    with pytest.raises(C3Error, match="ncclGroupStart"), group(library, "a test"):
        pytest.fail("entered a group that did not start")
    assert library.names() == ["ncclGroupStart"]


# --- the clique -------------------------------------------------------------------------------------------------------


def test_communicators_are_made_in_one_group_each_on_its_gpu():
    library = Library()
    made = Clique(gpus(library, 3), library=library)
    assert library.names() == [
        "ncclGetVersion", "ncclGetUniqueId", "ncclGroupStart", *["ncclCommInitRankConfig"] * 3, "ncclGroupEnd",
    ]  # fmt: skip
    inits = library.calls("ncclCommInitRankConfig")
    assert [(gpu, ranks, rank) for _, gpu, _, ranks, _, rank, _ in inits] == [(0, 3, 0), (1, 3, 1), (2, 3, 2)]
    assert library.current == []
    assert made.version == "2.28.9"


@pytest.mark.parametrize(
    ("variant", "ctas", "policy", "bounds", "cluster"),
    [
        ("nccl", 0, None, None, None),
        ("nccl_unclustered", 4, None, 4, 0),
        ("nccl_registered", 4, None, 4, None),
        ("nccl_zero_cta", 0, 2, None, None),
    ],
)
def test_what_a_variant_asks_for(variant, ctas, policy, bounds, cluster):
    made, library = clique(variant, ctas)
    unset = -(2**31)
    asked = (library.config.blocking, library.config.CTAPolicy, library.config.minCTAs, library.config.maxCTAs)
    assert asked == (1, policy or unset, bounds or unset, bounds or unset)
    assert library.config.cgaClusterSize == (unset if cluster is None else cluster)
    assert made.windowed == (variant in ("nccl_registered", "nccl_zero_cta"))


@pytest.mark.parametrize(
    ("variant", "ctas", "count", "said"),
    [
        ("ncl", 0, 2, "did you mean 'nccl'"),
        ("nccl_zero_cta", 4, 2, "ctas must be 0, not 4"),
        ("nccl", -1, 2, "0 \\(NCCL chooses\\) or more, not -1"),
        ("nccl", 0, 1, r"two or more different GPUs, not \[0\]"),
    ],
)
def test_what_no_clique_can_be_made_of(variant, ctas, count, said):
    with pytest.raises(C3Error, match=said):
        clique(variant, ctas, count)


def test_a_gpu_cannot_be_two_ranks():
    library = Library()
    one = gpus(library, 1)
    with pytest.raises(C3Error, match=r"\[0, 0\]"):
        Clique(one * 2, library=library)


def test_memory_is_given_back_with_its_last_tensor():
    made, library = clique()
    tensor = made.allocate(1, 5000)
    assert (tensor.data_ptr(), tensor.numel()) == (BASE + 4096, 5000)
    assert library.calls("ncclMemAlloc") == [("ncclMemAlloc", 1, "CArgObject", 5000)]
    again = Tensor(tensor.address, 10, tensor.owner)
    del tensor
    gc.collect()
    assert not library.calls("ncclMemFree")
    del again
    gc.collect()
    assert library.calls("ncclMemFree") == [("ncclMemFree", 1, BASE + 4096)]


def test_memory_that_was_refused_is_not_given_back():
    made, library = clique(fails="ncclMemAlloc")
    with pytest.raises(C3Error, match="allocating 7 bytes failed"):
        made.allocate(0, 7)
    gc.collect()
    assert not library.calls("ncclMemFree")


def test_windows_are_made_in_a_group_and_counted():
    made, library = clique("nccl_registered")
    tensors = [Tensor(BASE, 64), Tensor(BASE + 4096, 64)]
    made.register(tensors)
    made.register(tensors)
    assert library.names() == ["ncclGroupStart", *["ncclCommWindowRegister"] * 2, "ncclGroupEnd"]
    assert library.calls("ncclCommWindowRegister") == [
        ("ncclCommWindowRegister", 0, 50, BASE, 64, "CArgObject", 1),
        ("ncclCommWindowRegister", 1, 51, BASE + 4096, 64, "CArgObject", 1),
    ]
    made.unregister(tensors)
    assert not library.calls("ncclCommWindowDeregister")
    made.unregister(tensors)
    made.unregister(tensors)
    assert library.calls("ncclCommWindowDeregister") == [
        ("ncclCommWindowDeregister", 0, 50, 120), ("ncclCommWindowDeregister", 1, 51, 121),
    ]  # fmt: skip


@pytest.mark.parametrize("sizes", [(64,), (64, 32), (64, 64, 64)])
def test_a_window_is_of_equal_size_on_every_rank(sizes):
    made, library = clique("nccl_registered")
    with pytest.raises(C3Error, match="equal size on each of 2 ranks"):
        made.register([Tensor(BASE + 4096 * place, size) for place, size in enumerate(sizes)])
    assert not library.said


def test_a_window_that_was_not_made_is_said():
    made, _ = clique("nccl_registered", windows=False)
    with pytest.raises(C3Error, match="NCCL made no window"):
        made.register([Tensor(BASE, 64), Tensor(BASE + 4096, 64)])


def test_a_window_holds_its_memory():
    made, library = clique("nccl_registered")
    made.register([made.allocate(rank, 64) for rank in range(2)])
    gc.collect()
    assert not library.calls("ncclMemFree")
    made.close()
    gc.collect()
    assert library.names().index("ncclCommWindowDeregister") < library.names().index("ncclMemFree")


def test_closing_gives_windows_back_first_and_happens_once():
    made, library = clique("nccl_registered")
    made.register([Tensor(BASE, 64), Tensor(BASE + 4096, 64)])
    library.said.clear()
    made.close()
    made.close()
    assert library.said == [
        ("ncclCommWindowDeregister", 0, 50, 120), ("ncclCommWindowDeregister", 1, 51, 121),
        ("ncclCommDestroy", 0, 50), ("ncclCommDestroy", 1, 51),
    ]  # fmt: skip
    with pytest.raises(C3Error, match="this clique is closed"):
        made.all_gather([1, 2], [3, 4], 8, [0, 0])


# --- the transport ----------------------------------------------------------------------------------------------------


def enqueued(kind, in_place, variant="nccl", drop=None, nbytes=2048):
    made, library = clique(variant)
    buffers = buffers_of(kind, nbytes)
    mover = Nccl(made, buffers, in_place=in_place, drop=drop)
    library.said.clear()
    mover.ready()
    mover.restart(STREAMS)
    assert not library.said
    mover.enqueue(STREAMS)
    assert (library.names()[0], library.names()[-1]) == ("ncclGroupStart", "ncclGroupEnd")
    return buffers, library.said[1:-1]


@pytest.mark.parametrize("in_place", [True, False])
def test_an_all_gather(in_place):
    buffers, said = enqueued("all-gather", in_place)
    sends = [at(buffers.receive[0]), at(buffers.receive[1], 1024)] if in_place else list(map(at, buffers.send))
    assert said == [
        ("ncclAllGather", rank, sends[rank], at(buffers.receive[rank]), 1024, 1, 50 + rank, 900 + rank)
        for rank in range(2)
    ]


def test_an_all_to_all_out_of_place_is_one_call_a_rank():
    buffers, said = enqueued("all-to-all", False)
    assert said == [
        ("ncclAlltoAll", rank, at(buffers.send[rank]), at(buffers.receive[rank]), 1024, 1, 50 + rank, 900 + rank)
        for rank in range(2)
    ]


def test_an_all_to_all_in_place_leaves_own_blocks_alone():
    buffers, said = enqueued("all-to-all", True)
    s, r = buffers.send, buffers.receive
    assert said == [
        ("ncclSend", 0, at(s[0], 1024), 1024, 1, 1, 50, 900), ("ncclRecv", 0, at(r[0], 1024), 1024, 1, 1, 50, 900),
        ("ncclSend", 1, at(s[1]), 1024, 1, 0, 51, 901), ("ncclRecv", 1, at(r[1]), 1024, 1, 0, 51, 901),
    ]  # fmt: skip


def sent(said):
    """What a group of calls moves, by the definition of each: {(receiving rank, offset address): source address}."""
    moved = {}
    rank_of = {"ncclAllGather": 1, "ncclAlltoAll": 1}
    whole = [each for each in said if each[0] in rank_of]
    for name, source, start, _, count, *_ in whole:
        for _, target, _, receive, *_ in whole:
            first = start + (target * count if name == "ncclAlltoAll" else 0)
            for byte in range(count):
                moved[receive + source * count + byte] = first + byte
    sends = {(each[1], each[5]): each for each in said if each[0] == "ncclSend"}
    for each in said:
        if each[0] == "ncclRecv":
            partner = sends[(each[5], each[1])]
            assert partner[3] == each[3], "both sides have to name one size"
            for byte in range(each[3]):
                moved[each[2] + byte] = partner[2] + byte
    return moved


def executed(kind, in_place, drop):
    """Receive buffers after a run on paper: bytes of the send buffers by address, own shards in place, poison else."""
    nbytes = 96
    buffers, said = enqueued(kind, in_place, drop=drop, nbytes=nbytes)
    plan, shard = buffers.plan, nbytes // 2
    memory = {}
    for rank in range(2):
        for byte in range(plan.src_nbytes[rank]):
            memory[at(buffers.send[rank], byte)] = (rank, byte)
        for byte in range(nbytes):
            memory[at(buffers.receive[rank], byte)] = POISON
        for byte in range(shard):
            own = byte if kind == "all-gather" else rank * shard + byte
            memory[at(buffers.receive[rank], rank * shard + byte)] = (rank, own)
    moved = {target: memory[source] for target, source in sent(said).items()}
    memory |= moved
    got = [[memory[at(buffers.receive[rank], byte)] for byte in range(nbytes)] for rank in range(2)]
    wanted = [
        [(source, byte + (rank * shard if kind == "all-to-all" else 0)) for source in range(2) for byte in range(shard)]
        for rank in range(2)
    ]
    return got, wanted


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_on_paper_every_byte_arrives_and_with_a_drop_every_rank_lacks_some(kind, in_place):
    got, wanted = executed(kind, in_place, None)
    assert got == wanted
    got, wanted = executed(kind, in_place, 0)
    for rank in range(2):
        wrong = [byte for byte in range(96) if got[rank][byte] != wanted[rank][byte]]
        assert wrong, f"rank {rank} lacks nothing"
        if in_place and kind == "all-to-all":
            assert wrong == list(range(48 * (2 - rank) - SHORT_NBYTES, 48 * (2 - rank)))
        elif in_place:  # rank 1 sends from 16 bytes before its shard on, and its last 32 bytes stay at home
            assert wrong == [*range(32, 48), *(range(64, 96) if rank == 0 else ())]
        if in_place:
            assert {got[rank][byte] for byte in wrong} == {POISON}


def test_the_first_run_is_made_at_once_and_leaves_poison():
    made, library = clique()
    buffers = buffers_of()
    Nccl(made, buffers)
    assert library.names() == ["ncclGroupStart", *["ncclAllGather"] * 2, "ncclGroupEnd", *["synchronize"] * 2]
    assert [each[-1] for each in library.calls("ncclAllGather")] == [800, 801]
    assert [tensor.filled for tensor in buffers.receive] == [[POISON], [POISON]]
    assert [tensor.filled for tensor in buffers.send] == [[], []]


@pytest.mark.parametrize("variant", ["nccl_registered", "nccl_zero_cta"])
def test_variants_with_windows_register_before_the_first_run_and_close_once(variant):
    made, library = clique(variant)
    buffers = buffers_of()
    first, second = Nccl(made, buffers), Nccl(made, buffers, drop=0)
    assert first.name == variant
    registered = [each[3] for each in library.calls("ncclCommWindowRegister")]
    assert sorted(registered) == sorted(map(at, [*buffers.send, *buffers.receive]))
    assert library.names().index("ncclAllGather") > library.names().index("ncclCommWindowRegister")
    first.close()
    first.close()
    assert not library.calls("ncclCommWindowDeregister")
    second.close()
    assert len(library.calls("ncclCommWindowDeregister")) == 4


def test_the_plain_variant_has_no_windows():
    made, library = clique("nccl")
    Nccl(made, buffers_of()).close()
    assert not library.calls("ncclCommWindowRegister", "ncclCommWindowDeregister")


@pytest.mark.parametrize(
    ("variant", "buffers", "said"),
    [
        ("nccl", buffers_of(ranks=4), "among 2 GPUs"),
        ("nccl", buffers_of(topology="host"), "among 2 GPUs"),
        ("nccl", buffers_of(nbytes=2049), "equal shards, so a number of bytes that 2 divides"),
        ("nccl_zero_cta", buffers_of("all-to-all"), "use in_place=False"),
    ],
)
def test_what_nccl_cannot_run(variant, buffers, said):
    made, library = clique(variant)
    with pytest.raises(C3Error, match=said):
        Nccl(made, buffers)
    assert not library.said


def test_an_unknown_collective_is_refused():
    made, _ = clique()
    plan = SimpleNamespace(ranks=2, topology="mesh", kind="all-reduce", nbytes=64)
    with pytest.raises(C3Error, match="not 'all-reduce'"):
        Nccl(made, SimpleNamespace(plan=plan, send=[], receive=[]))


def test_every_variant_says_what_it_is():
    assert all(VARIANTS.values())
    assert len(set(VARIANTS.values())) == len(VARIANTS) == 4
