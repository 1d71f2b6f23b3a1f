"""What a measured table may not say, and what the profiler may not print: one sentence each, nothing taken on trust."""

import pandas as pd
import pytest
from typer.testing import CliRunner

from c3lib.errors import C3Error
from c3lib.hardware import load_node
from c3lib.measure.premise import COUNTERS, merge
from c3lib.measure.run import _require_sound, measure
from c3lib.measured import FOLDER, TRANSPORTS, read_measured
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.results import sidecar_path, write_table
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite

NODE = load_node("h200_1")
TOLD = [
    {"gemm": "8x8x8", "arm": arm, "repetition": 0, "verified": True, "path": "p"} for arm in ("gemm", "copy_engine")
]
HEAD = '"ID","Metric Name","Metric Unit","Metric Value"'


def printed(change=lambda line: line, units="byte"):
    lines = [
        f'"{place}","{name}","{"sector" if "sectors" in name else units}","{1000 * place + row:,}"'
        for place in range(len(TOLD))
        for row, name in enumerate(COUNTERS)
    ]
    return "\n".join(["==PROF== connected", HEAD, *filter(None, map(change, lines))])


def test_the_profilers_table_by_hand():
    found = merge(printed(), TOLD)
    assert [row["value"] for row in found] == [0, 1, 2, 3, 1000, 1001, 1002, 1003]
    assert [row["arm"] for row in found] == ["gemm"] * 4 + ["copy_engine"] * 4


@pytest.mark.parametrize("value", ["n/a", "", "1.234", "1.234.567", "nan", "-5", "1,23,4", "1 234"])
def test_a_value_that_is_not_one_whole_number_is_refused(value):
    with pytest.raises(C3Error, match="not as one whole number"):
        merge(printed(lambda line: line.replace('"1,003"', f'"{value}"')), TOLD)


@pytest.mark.parametrize(
    "output",
    [
        printed(lambda line: "" if "1,003" in line else line),
        printed() + "\n" + printed().splitlines()[-1].replace('"1"', '"2"'),
    ],
    ids=["one is missing", "a range too many"],
)
def test_other_ranges_than_were_asked_for_are_refused(output):
    with pytest.raises(C3Error, match=r"the profiler counted \d values, 8 were asked for"):
        merge(output, TOLD)


def test_a_unit_that_is_not_known_is_refused():
    with pytest.raises(C3Error, match="in 'Pbyte', which is not known here"):
        merge(printed(units="Pbyte"), TOLD)


@pytest.mark.parametrize(("column", "value"), [("node", "mi300x_8"), ("suite", "conccl30")])
def test_a_table_that_is_labelled_as_another_is_refused(tmp_path, column, value):
    rows = pd.read_csv(FOLDER / "h200_1" / "conccl30_host.csv", nrows=20)
    write_table(rows.assign(**{column: value}), tmp_path / "h200_1" / "conccl30_host.csv")
    with pytest.raises(C3Error, match=rf"conccl30_host.csv: column {column} must be '(h200_1|conccl30_host)'"):
        read_measured("h200_1", "conccl30_host", tmp_path)


def test_rows_of_a_stand_in_are_not_measured_whatever_their_evidence_says(tmp_path):
    rows = pd.read_csv(FOLDER / "h200_1" / "conccl30_host.csv", nrows=20)
    table = write_table(rows, tmp_path / "h200_1" / "conccl30_host.csv", stand_ins=[])
    read_measured("h200_1", "conccl30_host", tmp_path)
    side = sidecar_path(table)
    side.write_text(side.read_text().replace('"stand_ins": []', '"stand_ins": ["a double"]'))
    with pytest.raises(
        C3Error, match=r"conccl30_host\.csv: not read: .* \(stand_ins of its provenance: \['a double'\]"
    ):
        read_measured("h200_1", "conccl30_host", tmp_path)


@pytest.mark.parametrize(("column", "value"), [("verified", None), ("verified", False), ("path", None), ("path", "")])
def test_an_empty_verification_or_path_is_none(tmp_path, column, value):
    frame = pd.DataFrame({"verified": [True, True], "path": "p", "transport": "copy_engine"}, dtype=object)
    _require_sound("x", frame, tmp_path)
    frame.loc[1, column] = value
    with pytest.raises(C3Error, match="nothing is published"):
        _require_sound("x", frame, tmp_path)


@pytest.mark.parametrize("repeats", [0, -3, 1.5, True])
def test_repetitions_are_a_whole_number(tmp_path, repeats):
    with pytest.raises(C3Error, match="repeats must be a whole number of at least 1"):
        measure("h200_1", "conccl30_host", tmp_path, ["order"], repeats)
    assert list(tmp_path.iterdir()) == []


def test_judging_a_table_that_is_no_suite_says_so():
    from c3lib.cli import app

    result = CliRunner().invoke(app, ["judge", "--node", "h200_1", "--suite", "isolated"])
    assert result.exit_code == 2
    assert "isolated is a table of another kind" in result.stderr


@pytest.mark.parametrize("cus", [132, 200, -8, float("nan"), float("inf")])
def test_a_partition_leaves_the_gemm_a_cu(cus):
    batch = kernels.batch(load_suite("conccl30_host", NODE.ranks), NODE)
    with pytest.raises(C3Error, match="cus must lie in 0 to 131"):
        predict(*batch, NODE, STRATEGIES["c3_rp"], cus=cus)


@pytest.mark.parametrize("blocks", [0, -1, float("nan"), float("inf")])
def test_a_copy_kernel_has_at_least_one_block(blocks):
    batch = kernels.batch(load_suite("conccl30_host", NODE.ranks), NODE)
    with pytest.raises(C3Error, match="blocks must be at least 1"):
        predict(*batch, NODE, STRATEGIES["c3_rp"], cus=8, blocks=blocks)


def test_the_table_of_transports_has_every_transport_and_says_where_the_own_shard_was(tmp_path):
    rows = pd.read_csv(FOLDER / "h200_1" / "order.csv", nrows=len(TRANSPORTS), keep_default_na=False, na_values=[""])
    rows = rows.assign(node="h200_2", experiment="transports", transport=list(TRANSPORTS))
    write_table(rows.assign(in_place=True), tmp_path / "h200_2" / "transports.csv")
    assert read_measured("h200_2", "transports", tmp_path)[0]["transport"].tolist() == list(TRANSPORTS)
    write_table(rows, tmp_path / "h200_2" / "transports.csv")
    with pytest.raises(C3Error, match="in_place"):
        read_measured("h200_2", "transports", tmp_path)
