"""Nodes: what the files say, and one clear sentence for each way in which a file can be wrong."""

import re
from dataclasses import fields

import numpy as np
import pytest
from model_cases import H200, MI300X, NODES

from c3lib.constants import EVIDENCE
from c3lib.errors import C3Error
from c3lib.files import DATA
from c3lib.hardware import SECTIONS, load_node, node_names

TEXT = (DATA / "hardware" / "mi300x_8.toml").read_text()


@pytest.fixture
def load(tmp_path):
    """``load(old, new)`` loads the MI300X file with one piece of text replaced."""

    def load(old="", new="", count=1):
        assert old in TEXT
        (tmp_path / "bad.toml").write_text(TEXT.replace(old, new, count))
        return load_node("bad", tmp_path)

    return load


def refused(load, old, new, message):
    with pytest.raises(C3Error) as caught:
        load(old, new)
    text = str(caught.value)
    assert "bad.toml: " in text
    assert re.search(message, text), text
    assert "\n" not in text


def test_the_four_nodes():
    assert node_names() == ["h200_1", "h200_2", "h200_8", "mi300x_8"]
    assert {name: (node.topology, node.ranks) for name, node in NODES.items()} == {
        "h200_1": ("host", 8),
        "h200_2": ("switch", 2),
        "h200_8": ("switch", 8),
        "mi300x_8": ("mesh", 8),
    }


def test_derived_numbers_by_hand():
    assert MI300X.gpu.ridge == pytest.approx(1307.4e12 / 5300e9)
    assert MI300X.gpu.hbm_gbs == pytest.approx(4717)
    assert MI300X.gpu.matrix_tflops == pytest.approx(601.404)
    assert (MI300X.links_used(), H200.links_used(), NODES["h200_2"].links_used()) == (7, 1, 18)


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_every_constant_has_unit_source_and_evidence(node):
    keys = {f"{section}.{item.name}" for section, kind in SECTIONS.items() for item in fields(kind)}
    assert set(node.constants) == keys
    for constant in node.constants.values():
        assert constant.evidence in EVIDENCE
        assert len(constant.source.strip()) > 5, constant.key
        assert constant.unit


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch_us =", "lanch_us =", r"unknown key 'gpu.lanch_us' \(did you mean 'gpu.launch_us'\?\)"),
        ("ranks = 8", "rank = 8\nranks = 8", r"unknown key 'rank' \(did you mean 'ranks'\?\)"),
        ("ranks = 8", "", "key ranks is missing"),
        ("[dma]", "[dna]", "unknown key 'dna'"),
        ("ranks = 8", "ranks = true", "ranks must be a int"),
        ("ranks = 8", 'ranks = "8"', "ranks must be a int"),
        ("ranks = 8", "ranks = 0", "ranks must be at least 1"),
        ("ranks = 8", "ranks = 9", r"link.count \(7\) must reach every peer of a mesh of 9 ranks"),
        ('topology = "mesh"', 'topology = "ring"', "topology must be one of mesh, switch, host, not 'ring'"),
        ("count = { value = 7,", "count = { value = 6,", "link.count"),
        ("cus = { value = 304,", "cus = { value = 303,", r"gpu.cus \(303\) must be a multiple of gpu.dies"),
        ("cus = { value = 304,", "cus = { value = 304.5,", "gpu.cus.value must be a whole number"),
        ("cus = { value = 304,", "cus = { value = 0,", "gpu.cus.value must lie in"),
        ("cus = { value = 304,", "cus = { value = 56,", "all-gather.default_cus must be fewer than gpu.cus"),
        ("cus = { value = 304,", "cus = { valu = 304,", r"gpu.cus.valu'.*did you mean 'gpu.cus.value'"),
        ("cus = { value = 304,", "cus = {", "key gpu.cus.value is missing"),
        ("cus = { value = 304,", 'cus = { value = "304",', "gpu.cus.value must be a finite number, not '304'"),
        ("cus = { value = 304,", "cus = { value = true,", "gpu.cus.value must be a finite number, not True"),
        ("cus_step = { value = 8,", "cus_step = { value = 304,", "gpu.cus_step must be fewer than gpu.cus"),
        ("value = 5300,", "value = nan,", "gpu.hbm_peak_gbs.value must be a finite number, not nan"),
        ("value = 5300,", "value = inf,", "gpu.hbm_peak_gbs.value must be a finite number, not inf"),
        ("value = 5300,", f"value = {'9' * 400},", "gpu.hbm_peak_gbs.value must be a finite number"),
        ("value = 5300,", f"value = {'9' * 5000},", "not valid TOML"),
        ("value = 5300,", "value = -1,", r"gpu.hbm_peak_gbs.value must lie in \[1, inf\] GB/s, not -1"),
        ("value = 0.89,", "value = 1.01,", r"gpu.hbm_efficiency.value must lie in \[0.01, 1\] fraction"),
        ("value = 48,", "value = 65,", "link.dma_gbs must not exceed link.peak_gbs"),
        ("peer_engines = { value = 14,", "peer_engines = { value = 17,", "dma.peer_engines must not exceed"),
        ('value = 5300, unit = "GB/s"', 'value = 5300, unit = "GB"', "gpu.hbm_peak_gbs.unit must be 'GB/s', not 'GB'"),
        (
            'unit = "GB/s", evidence = "reported"',
            'unit = "GB/s", evidence = "guess"',
            "evidence must be one of reported",
        ),
        ('source = "AMD MI300X data sheet"', 'source = " "', r"gpu.hbm_peak_gbs.source must say where"),
        (
            'calibrated_on = "conccl.saturation_cus.ag"',
            'calibrated_on = ""',
            "all-gather.cu_gbs.calibrated_on must say",
        ),
        ("launch_us = {", "launch_us = 5\n#{", "gpu.launch_us must be a table"),
        ("[gpu]", "[gpu", "not valid TOML: .*line"),
        ("[gpu]", "x = " + "[" * 3000 + "]" * 3000 + "\n[gpu]", "bad.toml: "),
    ],
)
def test_a_wrong_file_is_named_with_its_key(load, old, new, message):
    refused(load, old, new, message)


def test_the_unchanged_copy_loads(load):
    """The control of the test above: nothing but the replaced text makes it fail."""
    assert load().constants == MI300X.constants


def test_no_text_at_all(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(C3Error, match=r"bad\.toml: not UTF-8 text"):
        load_node("bad", tmp_path)


def test_every_prefix_of_a_file_is_refused(tmp_path):
    """A file cut short at any line is an error that names it, never a node."""
    lines = TEXT.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if line.strip())
    for count in range(0, last + 1, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "bad.toml").write_text("".join(lines[:count]))
        with pytest.raises(C3Error, match=r"bad\.toml: "):
            load_node("bad", folder)


def test_an_unknown_node_suggests_the_near_one():
    with pytest.raises(C3Error, match=r"unknown node 'mi300x' \(did you mean 'mi300x_8'\?\); known: h200_1, h200_2"):
        load_node("mi300x")


@pytest.mark.parametrize("name", ["../hardware/mi300x_8", "", "mi300x_8.toml"])
def test_a_name_is_no_path(name):
    with pytest.raises(C3Error, match="unknown node"):
        load_node(name)


def test_a_changed_constant_changes_that_one_only():
    changed = MI300X.with_constant("all-gather.cu_gbs", np.float64(3.0))
    assert changed.library["all-gather"].cu_gbs == changed.constants["all-gather.cu_gbs"].value == 3.0
    assert changed.library["all-to-all"] == MI300X.library["all-to-all"]
    assert MI300X.library["all-gather"].cu_gbs == 10.5
    same = {key for key in MI300X.constants if changed.constants[key] == MI300X.constants[key]}
    assert same == set(MI300X.constants) - {"all-gather.cu_gbs"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gpu.cu", 8, "unknown constant 'gpu.cu'"),
        ("gpu.cus", 305, "multiple of gpu.dies"),
        ("gpu.cus", 303.5, "mi300x_8: gpu.cus must be a whole number"),
        ("interference.dispatch_share", 1.5, "interference.dispatch_share must lie in"),
        ("interference.dispatch_share", float("nan"), "finite"),
        ("interference.dispatch_share", True, "finite"),
        ("link.dma_gbs", 65, "must not exceed link.peak_gbs"),
    ],
)
def test_an_impossible_change_is_refused(key, value, message):
    with pytest.raises(C3Error, match=message):
        MI300X.with_constant(key, value)


def test_several_constants_are_changed_together_in_any_order():
    node = load_node("mi300x_8")
    values = {"dma.peer_engines": 20, "dma.engines": 32, "all-gather.default_cus": 32}
    first, second = node.with_constants(values), node.with_constants(dict(reversed(values.items())))
    assert first.dma == second.dma
    assert (first.dma.engines, first.dma.peer_engines, first.library["all-gather"].default_cus) == (32, 20, 32)
    assert first.constants["dma.engines"].evidence == "modelled"
    with pytest.raises(C3Error, match=r"mi300x_8: dma\.peer_engines must not exceed dma\.engines"):
        node.with_constants({"dma.peer_engines": 20})
