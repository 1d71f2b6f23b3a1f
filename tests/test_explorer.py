"""The explorer without a browser: the same numbers as everywhere else, and what its widgets do."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

import c3lib
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.explain import explain
from c3lib.explorer import drawing
from c3lib.explorer.question import LAYERS, MATRICES, Question, answer, layer_gemm
from c3lib.workload import Gemm

ASKED = Question(Gemm(8192, 8192, 8192), "all-gather", 896 * 2**20, "mi300x_8", "conccl")


def test_an_answer_has_the_numbers_of_explain_and_advise():
    found = answer(ASKED)
    assert found.explanation == explain(ASKED.gemm, ASKED.collective, "mi300x_8")
    assert found.advice == c3lib.advise(ASKED.gemm, ASKED.collective, "mi300x_8")
    assert found.timeline["end_s"].max() == pytest.approx(
        next(row.time_s for row in found.explanation.outcomes if row.strategy == "conccl")
    )
    assert found.reached_tflops * 1e12 * found.explanation.gemm_alone_s == pytest.approx(ASKED.gemm.flops)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_printed_lines_ask_the_same(dtype):
    asked = Question(Gemm(512, 1024, 2048, dtype), "all-to-all", 3 * 2**20 + 1, "h200_8")
    assert eval(asked.python(), {"c3lib": c3lib}) == answer(asked).explanation
    said = CliRunner().invoke(app, [*shlex.split(asked.shell())[1:], "--json"])
    assert said.exit_code == 0
    assert json.loads(said.stdout)["serial_s"] == answer(asked).explanation.serial_s


def test_a_layer_is_that_matrix():
    assert LAYERS[1:] == tuple(MATRICES)
    assert layer_gemm("70b-gateup", 4096) == Gemm(4096, 57344, 8192)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node": "h100"}, "h100"),
        ({"kind": "broadcast"}, "broadcast"),
        ({"strategy": "c4"}, "c4"),
        ({"nbytes": -1}, "nbytes"),
    ],
)
def test_what_cannot_be_asked_is_refused(change, message):
    with pytest.raises(C3Error, match=message):
        Question(**{"gemm": ASKED.gemm, "kind": "all-gather", "nbytes": 1, "node": "mi300x_8", **change})


def test_drawings_tell_every_strategy_and_its_time():
    found = answer(ASKED)
    text = drawing.column(found)
    for row in found.explanation.outcomes:
        assert row.strategy in text
    assert "modelled · mi300x_8" in text
    assert len(re.findall(r"<svg", text)) == 4
    # Bars are as long as the times they stand for.
    widths = [float(value) for value in re.findall(r'<rect x="84.0" y="[\d.]+" width="([\d.]+)" height="15', text)][:7]
    times = [found.explanation.serial_s, *(row.time_s for row in found.explanation.outcomes)]
    assert [width / widths[0] for width in widths] == pytest.approx([value / times[0] for value in times], rel=1e-3)


@pytest.mark.parametrize("gemm", [Gemm(1, 1, 1), Gemm(2**20, 2**16, 2**14)])
@pytest.mark.parametrize("nbytes", [0, 1, 2**40])
@pytest.mark.parametrize("node", ["mi300x_8", "h200_1"])
def test_extremes_are_drawn_too(gemm, nbytes, node):
    text = drawing.page([answer(Question(gemm, "all-to-all", nbytes, node))])
    assert re.findall(r"[^a-z](nan|inf)[^a-z]", text.lower()) == []


class TestPanel:
    @pytest.fixture
    def panel(self):
        pytest.importorskip("ipywidgets")
        from c3lib.explorer.panel import Explorer

        return Explorer(ASKED, "h200_8")

    def test_the_widgets_say_what_was_asked(self, panel):
        assert panel.question == ASKED
        both = (ASKED, ASKED.on("h200_8"))
        assert panel.permalink() == "\n".join(f"{asked.shell()}\n{asked.python()}" for asked in both)
        assert panel.output.value == drawing.page([answer(ASKED), answer(ASKED.on("h200_8"))])

    def test_every_move_is_answered(self, panel):
        seen = {panel.output.value}
        for widget, value in (
            (panel.size, 2**20), (panel.kind, "all-to-all"), (panel.node, "h200_2"), (panel.m, 100),
            (panel.dtype, "fp32"), (panel.strategy, "c3_base"), (panel.beside, "none"), (panel.layer, "8x7b-down"),
            (panel.tokens, 192),
        ):  # fmt: skip
            widget.value = value
            assert panel.output.value not in seen
            seen.add(panel.output.value)
        assert panel.question == Question(
            Gemm(192, *MATRICES["8x7b-down"], "fp32"), "all-to-all", 2**20, "h200_2", "c3_base"
        )
        panel.question = ASKED
        assert panel.question == ASKED

    def test_tokens_or_dimensions_are_asked_for(self, panel):
        assert (panel.tokens.layout.display, panel.box.children[0].children[0].children[2].layout.display) == (
            "none",
            "",
        )
        panel.layer.value = "70b-qkv"
        assert (panel.tokens.layout.display, panel.box.children[0].children[0].children[2].layout.display) == (
            "",
            "none",
        )
        assert panel.size.layout.display is None

    def test_what_the_widgets_cannot_hold_is_refused_and_they_go_on(self, panel):
        with pytest.raises(C3Error, match="explorer: gemm 8388608x8x8: a dimension may be at most 4194304"):
            panel.question = Question(Gemm(2**23, 8, 8))
        before = panel.output.value
        panel.kind.value = "all-to-all"
        assert panel.output.value != before
        with pytest.raises(C3Error, match="unknown node 'nope'"):
            type(panel)(ASKED, "nope")

    def test_without_a_kernel_there_is_the_answer_as_a_page(self, panel):
        bundle = panel._repr_mimebundle_()
        assert bundle["text/html"] == panel.output.value
        assert "application/vnd.jupyter.widget-view+json" in bundle
