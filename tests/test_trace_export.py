"""Runs as traces: what is written is what the model says or the row holds, and it is read back as that."""

import gzip
import json
import os
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import c3lib
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.hardware import load_node
from c3lib.measured import measured_nodes, read_measured
from c3lib.model import kernels
from c3lib.model.timeline import timeline
from c3lib.strategy import STRATEGIES
from c3lib.trace import export
from c3lib.trace.analysis import analyze
from c3lib.trace.record import record
from c3lib.workload import Collective, Gemm, Scenario

NODES = ("mi300x_8", "h200_8", "h200_2", "h200_1")
LONG = Gemm(8192, 8192, 8192), Collective("all-gather", 896 * 2**20, 8)
EXAMPLE = ROOT / "docs" / "traces_example.json"

runs = st.builds(
    lambda m, n, k, kind, mib, node, strategy: (
        Gemm(m, n, k), Collective(kind, mib * 2**20, load_node(node).ranks), node, strategy
    ),
    st.integers(1, 8192), st.integers(64, 16384), st.integers(64, 16384),
    st.sampled_from(["all-gather", "all-to-all"]), st.integers(0, 2048),
    st.sampled_from(NODES), st.sampled_from(sorted(STRATEGIES)),
)  # fmt: skip


def ns(time_s):
    return round(float(time_s) * 1e9)


def interval_ns(rows, task):
    """When a task of a timeline works, from its start-up on, in nanoseconds; None where it does not."""
    busy = rows[(rows["task"] == task) & (rows["phase"] != "start-up")]
    return (ns(busy["start_s"].min()), ns(busy["end_s"].max())) if len(busy) else None


def shell(*words):
    return CliRunner().invoke(app, ["trace", "export", *map(str, words)])


MODEL = ["--gemm", "8192x8192x8192", "--collective", "all-gather", "--size", "896MiB"]


@settings(max_examples=40, deadline=None)
@given(runs)
def test_a_modelled_run_is_read_back_with_the_same_overlap_and_exposed_time(tmp_path_factory, run):
    gemm, collective, node, strategy = run
    path = export.write(export.modelled(*run), tmp_path_factory.mktemp("run") / "t.json")
    rows = timeline(Scenario("any", gemm, collective), load_node(node), strategy)
    start, end = interval_ns(rows, "gemm")
    (found,) = analyze([path])
    assert (found.evidence, found.complete) == ("modelled", True)
    assert ns(found.gemm_s) == end - start
    moved = interval_ns(rows, "collective")
    if moved is None:
        assert found.communication.time_s == 0
        return
    both = max(0, min(end, moved[1]) - max(start, moved[0]))
    assert ns(found.communication.time_s) == moved[1] - moved[0]
    assert ns(found.communication.overlapped_s) == ns(found.communication.beside_gemms_s) == both
    assert ns(found.communication.exposed_s) == moved[1] - moved[0] - both
    if both:
        (overlap,) = found.overlaps
        assert overlap.gemm.shape == (gemm.m, gemm.n, gemm.k, 1, "bf16")
        assert (overlap.transfer.collective, overlap.transfer.ranks) == (collective.kind, collective.ranks)
        assert overlap.transfer.nbytes == collective.nbytes


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("strategy", ["c3_base", "conccl_rp"])
def test_counters_are_the_models_and_the_links_move_every_byte(node, strategy):
    gemm, collective = LONG[0], Collective("all-gather", LONG[1].nbytes, load_node(node).ranks)
    there = load_node(node)
    events = export.modelled(gemm, collective, there, strategy)["traceEvents"]
    counters = pd.DataFrame(
        [(e["name"], e["ts"], sum(e["args"].values())) for e in events if e["ph"] == "C"],
        columns=["name", "us", "value"],
    )
    moved = {}
    for name, part in counters.groupby("name"):
        assert (part["value"].iloc[:-1] >= 0).all()
        assert part["value"].iloc[-1] == 0  # when all is done
        spans = part["us"].diff().iloc[1:].to_numpy() * 1e-6
        moved[name] = (part["value"].iloc[:-1].to_numpy() * spans).sum() * 1e9
    assert counters[counters["name"].str.startswith("CUs")]["value"].max() <= there.gpu.cus
    assert 0 < counters[counters["name"].str.startswith("HBM")]["value"].max() <= 100 + 1e-6
    links = {name: nbytes for name, nbytes in moved.items() if "GB/s" in name}
    each = {"mesh": collective.rank_bytes, "switch": collective.sent_bytes, "host": collective.sent_bytes}[
        there.topology
    ]
    assert len(links) == {"mesh": 7, "switch": 1, "host": 2}[there.topology]
    assert list(links.values()) == pytest.approx([each] * len(links), rel=1e-3)


def test_dma_engines_have_tracks_of_their_own_with_the_bytes_that_each_moves():
    events = export.modelled(*LONG, "mi300x_8", "conccl")["traceEvents"]
    copies = [event for event in events if event.get("cat") == "copy"]
    assert [event["args"]["bytes"] for event in copies] == [LONG[1].rank_bytes] * 7
    assert len({event["tid"] for event in copies}) == 7
    assert not [
        event for event in export.modelled(*LONG, "mi300x_8", "c3_sp")["traceEvents"] if event.get("cat") == "copy"
    ]


def labelled(trace):
    """Names that a viewer shows for tracks, kernels and counters."""
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            yield event["args"]["name"]
        elif event["ph"] == "C" or event["cat"] in ("kernel", "gpu_memcpy", "copy"):
            yield event["name"]


def test_every_track_says_which_evidence_it_is():
    for strategy in STRATEGIES:
        trace = export.modelled(*LONG, "mi300x_8", strategy)
        assert all("(modelled)" in name for name in labelled(trace))
        assert trace["c3lib"]["evidence"] == "modelled"
    trace = export.measured("h200_2", "405b-down-1536-a2a", "conccl")
    assert all("(measured)" in name for name in labelled(trace))
    assert trace["c3lib"]["evidence"] == "measured"


@pytest.mark.parametrize("node", ["h200_1", "h200_2"])
def test_measured_rows_are_read_back_with_their_ends_and_their_overlap(tmp_path, node):
    assert node in measured_nodes()
    suite = {"h200_1": "conccl30_host", "h200_2": "conccl30_nvlink"}[node]
    table = read_measured(node, suite)[0]
    rows = pd.concat([table.iloc[::97], table[table["overlap_s"] == 0].head(3)])
    for row in rows.to_dict("records"):
        trace = export.measured(node, row["scenario"], row["strategy"], row["repetition"])
        (found,) = analyze([export.write(trace, tmp_path / "t.json")])
        kept = record(tmp_path / "t.json")
        assert sorted(kept.end_ns.tolist()) == sorted((ns(row["gemm_end_s"]), ns(row["collective_end_s"])))
        assert kept.start_ns.min() == 0
        assert found.communication.overlapped_s == pytest.approx(row["overlap_s"], abs=2e-9)
        assert found.evidence == "measured"
        if found.overlaps:
            (overlap,) = found.overlaps
            assert overlap.transfer.nbytes == row["total_bytes"]
            assert "x".join(map(str, overlap.gemm.shape[:3])) == row["gemm"]


def test_without_a_repetition_that_of_the_median_time():
    rows, _ = read_measured("h200_2", "conccl30_nvlink")
    own = rows[(rows["scenario"] == "405b-down-1536-a2a") & (rows["strategy"] == "c3_base")]
    middle = export.measured("h200_2", "405b-down-1536-a2a", "c3_base")["c3lib"]["repetition"]
    assert own[own["repetition"] == middle]["concurrent_s"].item() == own["concurrent_s"].median()


def test_rows_whose_bytes_were_wrong_are_refused(monkeypatch):
    rows, about = read_measured("h200_2", "conccl30_nvlink")
    monkeypatch.setattr(export, "read_measured", lambda *_: (rows.assign(verified=False), about))
    with pytest.raises(C3Error, match="1 measured rows failed the byte check"):
        export.measured("h200_2", "405b-down-1536-a2a", "c3_base")


def test_gzipped_by_name_and_the_same_bytes_each_time(tmp_path):
    trace = export.modelled(*LONG, "mi300x_8", "conccl")
    packed = [export.write(trace, tmp_path / f"{i}.json.gz").read_bytes() for i in range(2)]
    assert packed[0] == packed[1]
    assert json.loads(gzip.decompress(packed[0])) == json.loads(export.write(trace, tmp_path / "t.json").read_text())


@settings(max_examples=20, deadline=None)
@given(runs)
def test_alone_behind_it_each_kernel_takes_what_it_takes_without_the_other(tmp_path_factory, run):
    """Slowdowns of the trace are the model's: its time beside the other over its time alone, both without start-up."""
    gemm, collective, node, strategy = run
    there = load_node(node)
    path = export.write(export.modelled(*run, alone=True), tmp_path_factory.mktemp("alone") / "t.json")
    (found,) = analyze([path])
    rows = timeline(Scenario("any", gemm, collective), there, strategy)
    start, end = interval_ns(rows, "gemm")
    some, other = kernels.batch([Scenario("any", gemm, collective)], there)
    gemm_s = kernels.gemm_time_s(some, there.gpu.cus, there)[0] - there.gpu.launch_us * 1e-6
    assert found.gemm_s == pytest.approx((end - start) * 1e-9 + gemm_s, abs=2e-9)
    if not found.overlaps:
        return
    (overlap,) = found.overlaps
    assert (overlap.runs, overlap.gemm_alone_runs, overlap.transfer_alone_runs) == (1, 1, 1)
    by_dma = STRATEGIES[strategy].transport == "dma"
    whole_s, latency_s = (
        (kernels.dma_collective_time_s(other, there), kernels.dma_latency_s(other, there))
        if by_dma
        else (kernels.library_time_s(other, there), kernels.cu_collective_latency_s(other, there))
    )
    assert overlap.gemm_alone_s == pytest.approx(gemm_s, abs=2e-9)
    assert overlap.transfer_alone_s == pytest.approx(whole_s[0] - latency_s[0], abs=2e-9)
    assert overlap.lost_s == pytest.approx((end - start) * 1e-9 - gemm_s, abs=4e-9)


def test_the_example_of_the_documentation_is_what_the_model_says():
    """Renew: c3 trace export (the words of MODEL) --strategy c3_base --alone --out docs/traces_example.json"""
    kept, now = json.loads(EXAMPLE.read_text()), export.modelled(*LONG, "mi300x_8", "c3_base", alone=True)
    assert kept["traceEvents"] == now["traceEvents"]
    assert kept["c3lib"] | {"version": ""} == now["c3lib"] | {"version": ""}
    assert all("(modelled)" in name for name in labelled(kept))


def test_the_example_shows_what_the_readme_promises():
    """Exposed communication, and what the overlap costs: as c3 explain has it, which counts start-up too."""
    (found,) = analyze([EXAMPLE])
    (overlap,) = found.overlaps
    explained = c3lib.explain(*LONG, "mi300x_8")
    row = next(row for row in explained.outcomes if row.strategy == "c3_base")
    assert overlap.gemm_slowdown == pytest.approx(row.gemm_slowdown, rel=0.01)
    assert overlap.transfer_slowdown == pytest.approx(row.collective_slowdown, rel=0.01)
    assert overlap.lost_s > 0.2 * explained.gemm_alone_s
    assert found.communication.exposed_s > 0
    text = CliRunner().invoke(app, ["trace", "analyze", str(EXAMPLE)]).stdout
    assert "never" not in text
    assert f"{overlap.gemm_slowdown:.2f}" in text
    assert f"{overlap.lost_s * 1e3:.3f}" in text


def test_the_page_says_how_far_a_span_is_from_explain(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "traces.md").read_text()
    (found,) = analyze([export.write(export.modelled(*LONG, "mi300x_8", "conccl"), tmp_path / "t.json")])
    explained = c3lib.explain(*LONG, "mi300x_8")
    row = next(row for row in explained.outcomes if row.strategy == "conccl")
    assert f"({found.span_s * 1e3:.3f} ms in place of {row.time_s * 1e3:.3f} ms for `conccl`" in page
    monkeypatch.chdir(tmp_path)
    exec(re.findall(r"```python\n(.+?)```", page, re.S)[-1], {})  # the page's own text
    assert analyze([tmp_path / "run.json"])[0].overlaps[0].gemm_slowdown > 1


# --- the command ---


def test_the_command_writes_and_shows_what_analyze_reads(tmp_path):
    out = tmp_path / "t.json"
    result = shell(*MODEL, "--out", out)
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(app, ["trace", "analyze", str(out)]).stdout
    assert result.stdout == f"wrote {out}: open it in ui.perfetto.dev\n\n{shown}"
    content = json.loads(shell(*MODEL, "--out", out, "--json").stdout)
    assert (content["evidence"], content["out"], content["strategy"]) == ("modelled", str(out), "conccl")


def test_the_command_writes_measured_runs(tmp_path):
    words = ["--measured", "h200_2", "--scenario", "405b-down-1536-a2a", "--strategy", "c3_base", "--repetition", "2"]
    result = shell(*words, "--out", tmp_path / "t.json")
    assert result.exit_code == 0, result.output
    assert "(measured)" in result.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "--gemm: say it, or --measured NODE"),
        (MODEL[:4], "--size: say it"),
        ([*MODEL, "--scenario", "x"], "--scenario: cannot be given without --measured"),
        ([*MODEL, "--repetition", "0"], "--repetition: cannot be given without --measured"),
        ([*MODEL, "--measured", "h200_2"], "--gemm: cannot be given with --measured"),
        (["--measured", "h200_2"], "--scenario: say which"),
        (["--measured", "h200_3", "--scenario", "x"], "h200_3"),
        (["--measured", "mi300x_8", "--scenario", "x"], "no suite was measured on mi300x_8"),
        (["--measured", "h200_2", "--scenario", "405b-down-1536-a2"], "did you mean '405b-down-1536-a2a'"),
        (["--measured", "h200_2", "--scenario", "405b-down-1536-a2a", "--strategy", "conc"], "unknown strategy of"),
        (["--measured", "h200_2", "--scenario", "405b-down-1536-a2a", "--repetition", "99"], "unknown repetition"),
        ([*MODEL, "--strategy", "conc"], "unknown strategy 'conc'"),
        ([*MODEL, "--node", "mi300"], "mi300"),
        ([*MODEL[:1], "8x8", *MODEL[2:]], "gemm must read MxNxK"),
        ([*MODEL[:3], "all-reduce", *MODEL[4:]], "all-reduce"),
    ],
)
def test_what_cannot_be_exported_is_a_sentence_and_nothing_is_written(tmp_path, words, part):
    result = shell(*words, "--out", tmp_path / "t.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("c3: ")
    assert result.stderr.count("\n") == 1
    assert part in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_the_node_has():
    with pytest.raises(C3Error, match="collective: 8 ranks, but node h200_2 has 2"):
        export.modelled(*LONG, "h200_2", "conccl")


def test_a_file_that_stands_there_is_replaced_and_a_folder_that_does_not_is_made(tmp_path):
    old, new = tmp_path / "t.json", tmp_path / "some" / "where" / "t.json.gz"
    old.write_text("old")
    for out in (old, new):
        assert shell(*MODEL, "--out", out).exit_code == 0
        assert record(out).evidence == "modelled"
        assert list(out.parent.iterdir()) in ([out], [out, tmp_path / "some"], [tmp_path / "some", out])
    refused = tmp_path / "not made" / "t.json"
    assert shell(*MODEL, "--strategy", "conc", "--out", refused).exit_code == 2
    assert not refused.parent.exists()


def test_where_no_file_can_be_written_is_a_sentence_and_what_stood_there_stands(tmp_path):
    (tmp_path / "file").write_text("old")
    for out in (tmp_path, tmp_path / "file" / "t.json", tmp_path / ("x" * 300)):
        result = shell(*MODEL, "--out", out)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert result.stderr.startswith(f"c3: {out}: cannot be written: ")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "old")]


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_ctrl_c_while_it_is_written_leaves_what_stood_there(tmp_path, monkeypatch, at):
    def interrupted(*_):
        raise KeyboardInterrupt

    out = tmp_path / "t.json"
    out.write_text("old")
    monkeypatch.setattr(*((os, "fsync") if at == "fsync" else (Path, "replace")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        export.write(export.modelled(*LONG, "mi300x_8", "conccl"), out)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("t.json", "old")]
