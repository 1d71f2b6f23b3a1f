"""NVML by place, the links' counters, and the negative controls of a node, with stand-ins for what answers."""

import sys
from types import SimpleNamespace

import between_tables as made
import pytest

from c3lib import overlap
from c3lib.backends.cuda import CudaBackend
from c3lib.cuda import health
from c3lib.cuda.health import Traffic
from c3lib.cuda.nccl import VARIANTS, WINDOWED
from c3lib.cuda.setting import Setting
from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES, load_node
from c3lib.measure import links, regions

# --- NVML -------------------------------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """Eight GPUs that NVML numbers as they sit; power tells which one answered."""
    at = {f"0000:{place:02X}:00.0": place for place in range(8)}

    def by_place(pci_bus_id):
        if pci_bus_id not in at:
            raise NVMLError("Not Found")
        return at[pci_bus_id]

    def field(handle, fields):
        step = {"TX": 1, "RX": 2, "RAW_TX": 3, "RAW_RX": 4}
        return [
            SimpleNamespace(nvmlReturn=handle == 7, value=SimpleNamespace(ullVal=100 * handle + step[name]))
            for name, _ in fields
        ]

    names = {"DATA_TX": "TX", "DATA_RX": "RX", "RAW_TX": "RAW_TX", "RAW_RX": "RAW_RX"}
    module = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM="sm",
        NVML_CLOCK_MEM="memory",
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlDeviceGetHandleByPciBusId=by_place,
        nvmlDeviceGetClockInfo=lambda handle, which: {"sm": 1000, "memory": 2000}[which] - handle,
        nvmlDeviceGetPowerUsage=lambda handle: 1e3 * 10**handle,
        nvmlDeviceGetTemperature=lambda handle, which: 30 + handle,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 2e3 * 10**handle,
        nvmlDeviceGetFieldValues=field,
        **{f"NVML_FI_DEV_NVLINK_THROUGHPUT_{name}": short for name, short in names.items()},
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    for cached in (health._nvml, health._handle):
        cached.cache_clear()
    yield
    for cached in (health._nvml, health._handle):
        cached.cache_clear()


def shown(*places):
    """GPUs as CUDA numbers them where it is shown these places in this order."""
    return [SimpleNamespace(index=index, pci_bus_id=f"0000:{place:02X}:00.0") for index, place in enumerate(places)]


@pytest.mark.usefixtures("nvml")
def test_nvml_is_asked_for_the_gpus_that_cuda_shows_whatever_their_numbers():
    """Under CUDA_VISIBLE_DEVICES=6,3 CUDA's GPU 0 is NVML's 6."""
    found = health.read_health(shown(6, 3))
    assert (found.power_w, found.energy_j) == (10**6 + 10**3, 2 * (10**6 + 10**3))
    assert (found.sm_mhz, found.memory_mhz, found.temperature_c) == (994, 1994, 36)
    assert health.read_traffic(shown(6, 3)[1]) == Traffic(*(1024 * (300 + step) for step in (1, 2, 3, 4)))
    assert health.driver_version() == "580.1"


@pytest.mark.usefixtures("nvml")
def test_a_gpu_that_nvml_does_not_know_and_one_that_counts_nothing_are_named():
    with pytest.raises(C3Error, match=r"^cuda: NVML does not know the GPU at 0000:09:00\.0: Not Found$"):
        health.read_health(shown(9))
    with pytest.raises(C3Error, match=r"^cuda: GPU 1 does not tell the traffic of its NVLinks$"):
        health.read_traffic(shown(0, 7)[1])


# --- what crosses the links -------------------------------------------------------------------------------------------

PLANNED = links.NVLINK_NBYTES // 2  # of two ranks, a transfer


class Backend:
    """Rows of one transport whose counters move by what a test says, as shares of the plan."""

    evidence = "measured"

    def __init__(self, monkeypatch, sent=1.0, received=1.0, kind="all-gather", nbytes=links.NVLINK_NBYTES):
        from c3lib.transfer.builders import build_plan

        self.node, plan = load_node("h200_2"), build_plan(kind, nbytes, 2, "mesh")
        done = SimpleNamespace(verified=True, path="proved", granted=0, blocks=0)
        mover = SimpleNamespace(restart=lambda on: None, enqueue=lambda on: None)
        self.rig = SimpleNamespace(
            cuda="GPU 0",
            buffers=SimpleNamespace(plan=plan),
            run=lambda how, gemm: done,
            transport=lambda how: mover,
            streams=lambda how: ([], []),
            synchronize=lambda: None,
        )
        pairs, runs = plan.nbytes_per_pair, links.RUNS
        moved = int(runs * sent * pairs[0, 1]), int(runs * received * pairs[1, 0])
        readings = iter([Traffic(5, 6, 7, 8), Traffic(5 + moved[0], 6 + moved[1], 8, 9)])
        monkeypatch.setattr(links, "read_traffic", lambda cuda: next({"GPU 0": readings}[cuda]))
        monkeypatch.setattr(links, "describe", lambda how, region: {})

    def row(self):
        return links._arm(self, "all-gather", Setting(), False, 0)[0]


def test_bytes_are_those_of_one_transfer_each_way(monkeypatch):
    row = Backend(monkeypatch, sent=1.0001, received=0.9999).row()
    assert row["plan_bytes"] == PLANNED
    assert row["sent_bytes"] == pytest.approx(1.0001 * PLANNED)
    assert row["received_bytes"] == pytest.approx(0.9999 * PLANNED)


@pytest.mark.parametrize("way", ["sent", "received"])
@pytest.mark.parametrize("share", [0, 0.98, 1.02, 1 + 1 / links.RUNS, 2])
def test_f8_the_counters_must_see_what_the_plan_moves_no_less_and_no_more(monkeypatch, way, share):
    with pytest.raises(C3Error, match=rf"GPU 0 should have {way} {links.RUNS * PLANNED} bytes .* nothing is proved"):
        Backend(monkeypatch, **{way: share}).row()


def test_f8_what_comes_in_is_judged_by_what_the_peers_send(monkeypatch):
    """5 bytes among two ranks: GPU 0 sends 3 and receives 2."""
    assert Backend(monkeypatch, nbytes=5).row()["received_bytes"] == 2


@pytest.mark.parametrize("column", ["sent_bytes", "received_bytes", "plan_bytes"])
@pytest.mark.parametrize("value", [0, float("nan")])
def test_wire_bytes_over_no_payload_are_refused(column, value):
    rows = made.links()
    rows[column] = rows[column].astype(float)
    rows.loc[3, column] = value
    with pytest.raises(C3Error, match=f"overlap: column {column} of .* must be above 0, not {value}"):
        overlap.wire(rows)


# --- negative controls ------------------------------------------------------------------------------------------------


class Rig:
    """Notes what is loaded and controlled, in order."""

    def __init__(self):
        self.cudas = ["GPU 0", "GPU 1"]
        self.cuda = SimpleNamespace(name="H200", driver_version="1", copy_engines=3)
        self.done, self.plan = [], ()

    def clique(self, variant, blocks):
        return SimpleNamespace(version="2.28.9")

    def load(self, gemm=None, plan=None, direction="both", registered=False):
        self.plan = plan.kind, registered

    def negative_control(self, setting):
        assert setting.library not in WINDOWED or self.plan[1], "windows need registered memory"
        assert (setting.library, setting.in_place, self.plan[0]) != ("nccl_zero_cta", True, "all-to-all")
        self.done.append((setting, self.plan[0]))
        return f"{setting.transport} fired"

    def run(self, *arguments, **how):
        raise AssertionError("nothing is measured yet")


def backend(node):
    made = CudaBackend.__new__(CudaBackend)
    made.node, made.rig, made._control = load_node(node), Rig(), {}
    return made


def controlled(backend):
    """``(transport, batched, in place)`` of each control, by collective."""
    found = {kind: set() for kind in COLLECTIVES}
    for how, kind in backend.rig.done:
        found[kind].add((how.transport, how.batched and how.transport == "copy_engine", how.in_place))
    return found


def ways_of(arms):
    """The same of settings that are to be measured."""
    return {(how.transport, how.batched and how.transport == "copy_engine", how.in_place) for how in arms}


@pytest.mark.parametrize(
    ("node", "names"),
    [
        ("h200_1", ["copy_engine batched", "sm_kernel"]),
        ("h200_2", ["copy_engine batched", "sm_kernel", "nccl in place", "nccl_unclustered in place"]),
    ],
)
def test_f1_what_scenarios_use_is_controlled_once_and_told_in_the_words_of_its_control(node, names):
    here = backend(node)
    told = here.about()["negative_control"]
    assert told == {name: f"{name.split()[0]} fired" for name in names}
    assert len(here.rig.done) == 2 * len(names)  # for each collective
    assert here.about()["negative_control"] == told
    assert len(here.rig.done) == 2 * len(names)


@pytest.mark.parametrize(
    ("node", "make"),
    [
        *(("h200_1", make) for make in (regions.isolated, regions.order, regions.break_even)),
        *(("h200_2", make) for make in (regions.isolated, regions.order, regions.break_even, regions.transports)),
        ("h200_2", links.link_groups),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_f1_every_mover_of_an_experiment_is_controlled_before_anything_runs(node, make):
    here = backend(node)
    groups = make(here)
    asked = {how for group in groups for arm in group.arms.values() for how in arm.args if isinstance(how, Setting)}
    found, moves = controlled(here), {"copy_engine", "bare_copy", "sm_kernel", *VARIANTS}
    assert len(asked) > 1
    for way in ways_of(asked):
        assert way[0] in moves
        for kind in COLLECTIVES:
            assert way in found[kind] or (way[0], way[2], kind) == ("nccl_zero_cta", True, "all-to-all"), way
    assert len(here.rig.done) == len(set(here.rig.done))


def test_f1_a_control_that_does_not_fire_is_the_end(monkeypatch):
    here = backend("h200_2")

    def silent(setting):
        raise C3Error("negative control: the check did not notice")

    monkeypatch.setattr(here.rig, "negative_control", silent)
    with pytest.raises(C3Error, match="the check did not notice"):
        links.link_groups(here)
