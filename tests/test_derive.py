"""Constants from measured tables: those of the H200's file come back, and those of tables that the model made."""

import json
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
from measured_tables import NONE, REPEATS, row, setting, spread, table
from typer.testing import CliRunner

from c3lib.cli import app
from c3lib.derive import derive
from c3lib.errors import C3Error
from c3lib.files import DATA
from c3lib.hardware import load_node
from c3lib.measured import table_path
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.results import write_table
from c3lib.strategy import Strategy
from c3lib.workload import Collective, Gemm, Scenario

COMPUTE, MEMORY = "8192x8192x8192", "64x106496x16384"
BLOCKS = (1, 2, 4, 8, 16, 24, 32, 64)
TRUTH = {
    "link.dma_gbs": 20,
    "link.cu_gbs": 18,
    "dma.copy_us": 6,
    "all-gather.cu_gbs": 12,
    "all-gather.default_cus": 24,
    "all-gather.latency_us": 11,
    "all-to-all.cu_gbs": 12,
    "all-to-all.default_cus": 24,
    "all-to-all.latency_us": 11,
    "interference.memory_queueing": 0.4,
    "interference.copy_queueing": 0.7,
    "interference.waiting_per_cu": 3,
    "interference.flood_cus": 6,
}


def node_of(truth):
    node = load_node("h200_2")
    for key, value in truth.items():
        node = node.with_constant(key, value)
    return node


def batch_of(gemm, nbytes, node):
    return kernels.batch([Scenario("x", Gemm.parse(gemm), Collective("all-gather", nbytes, node.ranks))], node)


def transfer_s(node, nbytes, how):
    _, collective = batch_of(COMPUTE, nbytes, node)
    transport = "dma" if how["transport"] == "copy_engine" else "cu"
    return float(kernels.own_time_s(collective, node, transport, how["blocks"] or None)[0])


def isolated(node, default=24):
    rows = []
    kernel = lambda blocks: setting(blocks=blocks, transport="nccl")  # noqa: E731
    for turn in range(REPEATS):
        for gemm in (COMPUTE, MEMORY):
            batch, _ = batch_of(gemm, 2**20, node)
            for withheld in (0, 8, 16, 32, 64):
                how = setting(withheld=withheld, transport="none")
                seconds = float(kernels.gemm_time_s(batch, node.gpu.cus - withheld, node)[0])
                rows.append(row("isolated", gemm, how, turn, gemm_s=seconds, jitter=0.01))
        for size in (2**12, 2**20, 2**27, 2**28, 2**30):
            hows = [setting(), kernel(default), *(kernel(b) for b in BLOCKS if size == 2**27 and b != default)]
            for how in hows:
                seconds = transfer_s(node, size, how)
                more = {"transfer_s": seconds, "copies": 2, "jitter": 0.01}
                rows.append(row("isolated", "none", how, turn, nbytes=size, **more))
    return table(rows, "isolated").assign(node=node.name)


def order(node):
    rows = []
    for gemm in (COMPUTE, MEMORY):
        nbytes = 2**29 if gemm == COMPUTE else 2**28
        for first in ("gemm", "transfer"):
            for how in (setting(first=first), *(setting(blocks=b, first=first, transport="nccl") for b in BLOCKS)):
                transport = "dma" if how["transport"] == "copy_engine" else "cu"
                strategy = Strategy("x", transport, "gemm" if first == "gemm" else "collective", "none", "")
                found = predict(*batch_of(gemm, nbytes, node), node, strategy, blocks=how["blocks"] or None)
                both = {"gemm_s": found.gemm_end_s, "transfer_s": found.collective_end_s, "region_s": found.time_s}
                both = {name: float(value[0]) for name, value in both.items()}
                more = {"nbytes": nbytes, "copies": 2}
                rows.append(row("order", gemm, how, 0, **both, **more))
                rows.append(row("order", gemm, NONE, 0, gemm_s=float(found.gemm_alone_s[0])))
                rows.append(row("order", "none", how, 0, transfer_s=transfer_s(node, nbytes, how), **more))
    return table(rows, "order").assign(node=node.name)


def written(folder, node, isolated_rows=None, order_rows=None, **about):
    """The tables under the node's name, derived."""
    for name, rows in (("isolated", isolated_rows), ("order", order_rows)):
        if rows is not None:
            write_table(rows, table_path(node.name, name, folder), **{"device": "NVIDIA H200", **about})
    return {reading.key: reading for reading in derive(node.name, folder).readings}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    node = node_of(TRUTH)
    return written(tmp_path_factory.mktemp("found"), node, isolated(node), order(node))


# --- what was measured on one H200 ---


AS_IN_THE_FILE = [
    ("dma.engines", 0),
    ("dma.copy_us", 0),
    ("dma.command_us", 0),
    ("gpu.spare_cus", 0),
    ("all-gather.saturation_cus", 0),
    ("all-to-all.saturation_cus", 0),
    ("interference.copy_queueing", 0),
    ("interference.waiting_per_cu", 0),
    ("interference.dispatch_share", 0),
    ("all-gather.latency_us", 0.02),
    ("all-to-all.latency_us", 0.02),
    ("gpu.matrix_efficiency", 0.02),
    ("interference.flood_cus", 0.04),
    # The file has these of an earlier run than the published table.
    ("link.cu_gbs", 0.02),
    ("link.dma_gbs", 0.05),
    ("link.dma_one_way_gbs", 0.01),
    ("link.cu_one_way_gbs", 0.01),
    ("all-gather.cu_gbs", 0.07),
    ("all-to-all.cu_gbs", 0.07),
]


def test_the_constants_of_one_h200_come_back_from_its_tables():
    rows = {row["key"]: row for row in derive("h200_1").to_rows()}
    assert set(rows) == {key for key, _ in AS_IN_THE_FILE}
    for key, tolerance in AS_IN_THE_FILE:
        assert rows[key]["derived"] == pytest.approx(rows[key]["in_file"], rel=tolerance, abs=1e-9), key
        assert rows[key]["source"].startswith("1x NVIDIA H200, "), key


def test_too_little_traffic_tells_nothing_of_queueing():
    """Copies over the host link use 2 % of memory bandwidth."""
    assert "interference.memory_queueing" not in {reading.key for reading in derive("h200_1").readings}


# --- tables that the model made ---


@pytest.mark.parametrize("key", [key for key in TRUTH if not key.startswith("interference")])
def test_isolated_constants_of_the_model_come_back(found, key):
    assert found[key].value == pytest.approx(TRUTH[key], rel=0.01)


@pytest.mark.parametrize(
    ("key", "tolerance"),
    [("memory_queueing", 0.03), ("copy_queueing", 0.05), ("waiting_per_cu", 0), ("flood_cus", 0.03)],
)
def test_coefficients_of_the_model_come_back(found, key, tolerance):
    assert found[f"interference.{key}"].value == pytest.approx(TRUTH[f"interference.{key}"], rel=tolerance)


@pytest.mark.parametrize("queueing", [0.1, 0.8])
def test_queueing_follows_the_slowdown(tmp_path, queueing):
    node = node_of(TRUTH | {"interference.memory_queueing": queueing})
    read = written(tmp_path, node, isolated(node), order(node))
    assert read["interference.memory_queueing"].value == pytest.approx(queueing, rel=0.03)


def test_a_node_whose_copies_do_not_flood_has_no_limit(tmp_path):
    node = node_of(TRUTH | {"interference.flood_cus": 0})
    assert written(tmp_path, node, isolated(node), order(node))["interference.flood_cus"].value == 0


def test_blocks_that_share_no_sm_are_one_an_sm(tmp_path):
    node = node_of(TRUTH | {"interference.waiting_per_cu": 1})
    assert written(tmp_path, node, isolated(node), order(node))["interference.waiting_per_cu"].value == 1


def test_a_default_that_does_not_saturate_sets_the_rate_of_a_block(tmp_path):
    """16 blocks of 12 GB/s beside links of 324: the library's own time must come out right."""
    node = node_of(TRUTH)
    slow = isolated(node, default=16)
    kernel = (slow["transport"] == "nccl") & (slow["blocks"] == 16)
    slow.loc[kernel, "transfer_s"] *= 1.25
    read = written(tmp_path, node, slow)
    assert read["all-gather.default_cus"].value == 16
    assert read["all-gather.cu_gbs"].value == pytest.approx(12 / 1.25, rel=0.01)


def test_each_collective_has_its_own_rows_where_there_are_some(tmp_path):
    node = node_of(TRUTH)
    rows = isolated(node)
    other = rows[rows["transport"] == "nccl"].assign(collective="all-to-all")
    other["transfer_s"] *= 2
    read = written(tmp_path, node, pd.concat([rows, other], ignore_index=True))
    assert read["all-gather.latency_us"].value == pytest.approx(11, rel=0.01)
    assert read["all-to-all.latency_us"].value == pytest.approx(22, rel=0.01)
    assert read["all-to-all.cu_gbs"].value == pytest.approx(6, rel=0.01)


@pytest.mark.parametrize(("ran", "asked"), [(16, [1, 2, 4, 8, 16, 32]), (24, [1, 2, 4, 8, 16, 32]), (8, [1, 2, 4, 8])])
def test_the_default_of_a_collective_swept_at_one_size_only(tmp_path, ran, asked):
    """The library ran on ``ran`` blocks when none were asked for: twice as often, or on as many as nobody asks for."""
    node = node_of(TRUTH)
    rows = isolated(node)
    swept = rows[(rows["transport"] == "nccl") & (rows["total_bytes"] == 2**27)]
    one = {blocks: part.assign(collective="all-to-all") for blocks, part in swept.groupby("blocks")}
    parts = [one[blocks] for blocks in asked] + [one[ran]]
    read = written(tmp_path, node, pd.concat([rows, *parts], ignore_index=True))
    assert read["all-to-all.default_cus"].value == ran
    assert read["all-to-all.latency_us"].value == pytest.approx(11, rel=0.01)  # the all-gather's, for want of its own
    assert read["all-gather.default_cus"].value == 24


def test_one_copy_tells_a_copy_from_a_command(tmp_path):
    """2 us are left of a plan of one peer that takes as long as a copy and a command."""
    node = node_of({"dma.copy_us": 6, "dma.command_us": 2})
    single = [row("isolated", "none", setting(), 0, nbytes=2**13, direction="in", copies=1, transfer_s=6e-6)]
    rows = pd.concat([isolated(node), table(single, "isolated").assign(node=node.name)], ignore_index=True)
    read = written(tmp_path, node, rows)
    assert read["dma.copy_us"].value == pytest.approx(6)
    assert read["dma.command_us"].value == pytest.approx(2, abs=0.1)


def test_the_rate_one_way_is_that_of_whole_plans_from_host_memory(tmp_path):
    """Also where blocks were swept, and only where the link is the host's: between GPUs both ways are as fast."""
    host, switch = load_node("h200_1"), node_of(TRUTH)
    rows = isolated(switch).assign(node=host.name)
    rows["transport"] = rows["transport"].replace("nccl", "sm_kernel")
    sent = 2**28 * 7 / 8
    how = {"nbytes": 2**28, "direction": "in", "copies": 7}
    arms = [(setting(), 55e9), *((setting(blocks=blocks), blocks * 6e9) for blocks in (1, 2, 4, 8))]
    more = [row("isolated", "none", arm, 0, **how, transfer_s=sent / rate) for arm, rate in arms]
    fast = [{"copies": 1}, {"direction": "out"}]  # one copy is no plan, and bytes that leave are another matter
    other = [row("isolated", "none", setting(), 0, **(how | change), transfer_s=1e-6) for change in fast]
    with_both = pd.concat([rows, table(more + other, "isolated").assign(node=host.name)], ignore_index=True)
    read = written(tmp_path, host, with_both)
    assert read["link.dma_one_way_gbs"].value == pytest.approx(55, rel=0.01)
    assert read["link.cu_one_way_gbs"].value == pytest.approx(48, rel=0.01)
    assert not [key for key in written(tmp_path, host, rows) if "one_way" in key]
    assert not [key for key in written(tmp_path, switch, with_both.assign(node=switch.name)) if "one_way" in key]


def test_without_the_table_order_there_are_no_coefficients(tmp_path):
    node = node_of(TRUTH)
    read = written(tmp_path, node, isolated(node), copy_engines=4)
    assert not [key for key in read if key.startswith("interference")]
    assert read["dma.engines"].value == 4


def test_repetitions_count_by_their_median(tmp_path):
    node = node_of(TRUTH)
    rows = isolated(node)
    rows.loc[rows["repetition"] == 0, ["gemm_s", "transfer_s"]] *= 50
    assert np.median([spread(turn, 0.01) for turn in range(1, REPEATS)]) != 1  # so that the median is moved a little
    read = written(tmp_path, node, rows)
    assert read["link.dma_gbs"].value == pytest.approx(TRUTH["link.dma_gbs"], rel=0.02)


# --- the form of the file, and the shell ---


def test_the_lines_fit_into_the_nodes_file(tmp_path):
    derived = derive("h200_1")
    text = (DATA / "hardware" / "h200_1.toml").read_text()
    for section, lines in tomllib.loads(derived.to_toml()).items():
        for name, entry in lines.items():
            line = next(one for one in derived.to_toml().splitlines() if json.dumps(entry["source"]) in one)
            before, after = text.split(f"[{section}]\n", 1)
            text = f"{before}[{section}]\n" + re.sub(rf"(?m)^{name} = .*$", lambda _, line=line: line, after, count=1)
    (tmp_path / "mine.toml").write_text(text)
    node = load_node("mine", tmp_path)
    for reading in derived.readings:
        assert node.constants[reading.key].value == pytest.approx(reading.value), reading.key
        assert node.constants[reading.key].evidence == "measured"


def test_the_shell_shows_both_and_says_what_it_is():
    result = CliRunner().invoke(app, ["constants", "--node", "h200_1"])
    assert result.exit_code == 0, result.output
    assert "constants from its measured tables" in result.stdout
    assert re.search(r"link\.dma_gbs\s+48\.3\s+50\.7\s+-4\.7%", result.stdout)
    content = json.loads(CliRunner().invoke(app, ["constants", "--json"]).stdout)
    assert content["evidence"] == "measured"
    assert {row["key"] for row in content["constants"]} == {key for key, _ in AS_IN_THE_FILE}
    toml = CliRunner().invoke(app, ["constants", "--toml"]).stdout
    assert tomllib.loads(toml)["dma"]["engines"]["value"] == 3


@pytest.mark.parametrize("table", ["isolated", "order"])
def test_a_row_that_failed_its_byte_check_is_not_passed_over_in_silence(tmp_path, table):
    node = node_of(TRUTH)
    tables = {"isolated": isolated(node), "order": order(node)}
    tables[table].loc[5, "verified"] = False
    rows = len(tables[table])
    with pytest.raises(C3Error, match=rf"1 of {rows} rows of the table {table} failed their check, so nothing is"):
        written(tmp_path, node, tables["isolated"], tables["order"])


def test_a_node_without_tables_is_one_sentence(tmp_path):
    with pytest.raises(C3Error, match="nothing called 'isolated' was measured on mi300x_8"):
        derive("mi300x_8")
    with pytest.raises(C3Error, match="unknown node"):
        derive("h300", tmp_path)
