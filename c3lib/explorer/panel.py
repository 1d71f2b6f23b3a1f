"""The widgets: what is asked on top, the answer below, drawn anew at every change. Needs ipywidgets."""

from __future__ import annotations

from html import escape
from typing import Any

from c3lib.errors import C3Error, lacking, unknown
from c3lib.explorer import drawing
from c3lib.explorer.question import FREE, LAYERS, Question, answer, layer_gemm
from c3lib.hardware import COLLECTIVES, node_names
from c3lib.strategy import STRATEGIES
from c3lib.workload import DTYPE_BYTES, Gemm, format_size

NONE = "none"

LARGEST_SIDE = 2**22
"""Largest dimension of a GEMM that can be typed."""


class Explorer:
    """Show it as the last value of a cell. ``question`` is what the widgets say now; setting it moves them.

    Raises:
        C3Error: an unknown node, a dimension beyond :data:`LARGEST_SIDE`; ipywidgets is missing.
    """

    def __init__(self, question: Question | None = None, beside: str = ""):
        try:
            import ipywidgets as widgets
        except ImportError:
            raise lacking("the explorer", "ipywidgets", "notebooks") from None
        nodes = node_names()
        if beside not in ("", NONE, *nodes):
            raise unknown("node", beside, nodes)

        def wide() -> dict[str, Any]:
            return {"style": {"description_width": "6.5em"}, "layout": widgets.Layout(width="26em", max_width="100%")}

        self.node = widgets.Dropdown(options=nodes, description="node", **wide())
        self.beside = widgets.Dropdown(options=[NONE, *nodes], value=beside or NONE, description="beside it", **wide())
        self.layer = widgets.Dropdown(options=LAYERS, description="layer", **wide())
        tokens = [(str(count), count) for count in _steps(4, 17)]
        self.tokens = widgets.SelectionSlider(options=tokens, value=4096, description="tokens", **wide())
        self.m, self.n, self.k = (
            widgets.BoundedIntText(description=f"GEMM {name}", min=1, max=LARGEST_SIDE, **wide()) for name in "mnk"
        )
        self.dtype = widgets.Dropdown(options=list(DTYPE_BYTES), description="dtype", **wide())
        self.kind = widgets.Dropdown(options=COLLECTIVES, description="collective", **wide())
        self.size = widgets.SelectionSlider(options=_sizes(), description="size", **wide())
        self.strategy = widgets.Dropdown(options=list(STRATEGIES), description="timeline of", **wide())
        self.output = widgets.HTML(layout=widgets.Layout(width="100%"))
        self._inputs = (
            self.node, self.beside, self.layer, self.tokens, self.m, self.n, self.k, self.dtype, self.kind, self.size,
            self.strategy,
        )  # fmt: skip
        self._free = widgets.VBox([self.m, self.n, self.k])
        gemm = widgets.VBox([self.layer, self.tokens, self._free, self.dtype])
        rest = widgets.VBox([self.node, self.beside, self.kind, self.size, self.strategy])
        flow = widgets.Layout(display="flex", flex_flow="row wrap")
        self.box = widgets.VBox([widgets.Box([gemm, rest], layout=flow), self.output])
        self.question = question or Question(Gemm(8192, 8192, 8192))
        for item in self._inputs:
            item.observe(self._changed, names="value")

    @property
    def question(self) -> Question:
        """What the widgets ask of the first node."""
        gemm = (
            Gemm(self.m.value, self.n.value, self.k.value, self.dtype.value)
            if self.layer.value == FREE
            else layer_gemm(self.layer.value, self.tokens.value, self.dtype.value)
        )
        return Question(gemm, self.kind.value, self.size.value, self.node.value, self.strategy.value)

    @question.setter
    def question(self, question: Question) -> None:
        gemm = question.gemm
        if max(gemm.m, gemm.n, gemm.k) > LARGEST_SIDE:
            raise C3Error(f"explorer: gemm {gemm}: a dimension may be at most {LARGEST_SIDE}")
        self._moving = True  # one answer at the end, none in between
        try:
            self.layer.value = FREE
            self.m.value, self.n.value, self.k.value = gemm.m, gemm.n, gemm.k
            self.dtype.value, self.kind.value, self.node.value = gemm.dtype, question.kind, question.node
            self.strategy.value = question.strategy
            self.size.options = _sizes(question.nbytes)
            self.size.value = question.nbytes
        finally:
            self._moving = False
        self._show()

    def permalink(self) -> str:
        """The lines that ask the same in a shell and in Python, of each node that is shown."""
        return "\n".join(f"{asked.shell()}\n{asked.python()}" for asked in self._asked())

    def page(self) -> str:
        """The answer as HTML, as it is shown; an impossible question as the sentence that says so."""
        try:
            return drawing.page(answer(question) for question in self._asked())
        except C3Error as error:
            return f'<p role="alert">{escape(str(error))}</p>'

    def _asked(self) -> list[Question]:
        """The question of each node that is shown."""
        question, other = self.question, self.beside.value
        return [question] if other in (NONE, question.node) else [question, question.on(other)]

    def _changed(self, change: Any) -> None:
        if not self._moving:
            self._show()

    def _show(self) -> None:
        free = self.layer.value == FREE
        self._free.layout.display = "" if free else "none"
        self.tokens.layout.display = "none" if free else ""
        self.output.value = self.page()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The widgets where there is a kernel, elsewhere (a report, a plain page) the answer as it is now."""
        bundle: dict[str, Any] = self.box._repr_mimebundle_()
        return {**bundle, "text/plain": self.permalink(), "text/html": self.page()}


def _sizes(*more: int) -> list[tuple[str, int]]:
    """Choices of the size slider, from 64 KiB to 16 GiB."""
    return [(format_size(size), size) for size in sorted({*_steps(16, 34), *more})]


def _steps(low: int, high: int) -> list[int]:
    """Powers of two from ``2**low`` to ``2**high``, and half-way between them."""
    return sorted({2**power * part // 2 for power in range(low, high) for part in (2, 3)} | {2**high})
