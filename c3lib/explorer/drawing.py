"""An answer as HTML: bars and curves in the colours of the page, light or dark, drawn in a few milliseconds.

Text and lines take JupyterLab's colours (``--jp-…``), with a fallback for a page without them; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10

from c3lib.explain import SHORT_TITLES
from c3lib.explorer.question import Answer
from c3lib.figures.style import STRATEGY
from c3lib.workload import format_size

WIDTH, LEFT, RIGHT = 560, 84, 100
INK, QUIET = "var(--jp-content-font-color1, #222)", "var(--jp-content-font-color2, #666)"
LINE = "var(--jp-border-color2, #ddd)"
BLAME = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8A8A8A")
"""A colour for each mechanism, in the order of :data:`c3lib.explain.SHORT_TITLES`; told apart by the colour-blind."""


def page(answers: Iterable[Answer]) -> str:
    """Answers side by side, each with all its drawings; below each other where the page is narrow."""
    columns = "".join(f'<div style="flex:1 1 24em;min-width:0">{column(item)}</div>' for item in answers)
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 2.5em;color:{INK};line-height:1.4">{columns}</div>'


def column(answer: Answer) -> str:
    """One answer."""
    found, advice = answer.explanation, answer.advice
    facts = (
        f"GEMM {_ms(found.gemm_alone_s)} ({found.bound}-bound), collective {_ms(found.collective_alone_s)} alone: "
        f"{found.length_class}; ideal speedup {found.ideal:.2f}x"
    )
    sure = f" ({advice.speedup_low:.2f}x to {advice.speedup_high:.2f}x)" if advice.overlap else ""
    gain = f"{advice.strategy}: {advice.speedup:.2f}x over serial{sure}" if advice.overlap else "do not overlap"
    parts = [
        f'<h3 style="margin:.2em 0">{escape(answer.question.machine.title)}</h3>',
        _text(facts),
        f'<p style="margin:.4em 0"><b>{escape(gain)}</b><br>{escape(advice.reason)} {escape(_from(answer))}</p>',
        _titled("Time by strategy, and fraction of ideal", strategies(answer)),
        _text("* oracle: the best CU split of a sweep, known only afterwards"),
        _titled(f"Who runs when under {answer.question.strategy}, at what share of the rate alone", timeline(answer)),
        _titled("What the lost time is due to", blame(answer)),
        _titled("Roofline of the GEMM alone", roofline(answer)),
        _text(" · ".join(filter(None, ("modelled", answer.question.node, advice.uncertainty)))),
    ]
    return "".join(parts)


def _from(answer: Answer) -> str:
    size = answer.advice.overlap_from_nbytes
    if size is None:
        return "Overlap gains at no size of the collective beside this GEMM."
    return f"Break-even: overlap gains from {format_size(size)} on."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _text(text: str) -> str:
    return f'<p style="margin:.3em 0;color:{QUIET};font-size:90%">{escape(text)}</p>'


def _titled(title: str, drawing: str) -> str:
    caption = f'<figcaption style="font-size:92%">{escape(title)}</figcaption>'
    return f'<figure style="margin:.7em 0">{caption}{drawing}</figure>'


def _svg(height: float, shapes: Iterable[str], about: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(about)}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'style="width:100%;max-width:{WIDTH}px;font:12px sans-serif">{"".join(shapes)}</svg>'
    )


def _bar(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0, about: str = "") -> str:
    """``about`` is told when the pointer rests on the bar."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{colour}" '
        f'opacity="{opacity:.2f}"><title>{escape(about)}</title></rect>'
    )


def _label(x: float, y: float, text: str, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = LINE, dash: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-dasharray="{dash}"/>'
    )


def strategies(answer: Answer) -> str:
    """A bar a strategy; dashed: what perfect overlap would take."""
    found = answer.explanation
    rows = [("serial", found.serial_s, 0.0, "#8A8A8A")]
    rows += [
        (row.strategy + (" *" if row.oracle else ""), row.time_s, row.fraction_of_ideal, STRATEGY[row.strategy])
        for row in found.outcomes
    ]
    scale = (WIDTH - LEFT - RIGHT) / max(seconds for _, seconds, *_ in rows)
    shapes = []
    for place, (name, seconds, fraction, colour) in enumerate(rows):
        y = 4 + 20 * place
        part = f", {fraction:.2f}" if fraction == fraction else ""  # NaN: nothing to gain
        shapes += [
            _label(LEFT - 6, y + 12, name, "end"),
            _bar(LEFT, y, seconds * scale, 15, colour, about=f"{name}: {_ms(seconds)}{part}"),
            _label(LEFT + seconds * scale + 5, y + 12, _ms(seconds) + part),
        ]
    bottom = 4 + 20 * len(rows)
    ideal = LEFT + found.serial_s / found.ideal * scale
    shapes += [_rule(ideal, 0, ideal, bottom, QUIET, "3 3"), _label(ideal, bottom + 11, "ideal", "middle", QUIET)]
    return _svg(bottom + 16, shapes, "; ".join(f"{name} {_ms(seconds)}" for name, seconds, *_ in rows))


def timeline(answer: Answer) -> str:
    """GEMM above, collective below; a bar's height is its rate over the rate alone, its text what limits it."""
    rows, height = answer.timeline, 34
    end = float(rows["end_s"].max())
    scale = (WIDTH - LEFT - 10) / end
    shapes = []
    for place, task in enumerate(("gemm", "collective")):
        top = 4 + place * (height + 8)
        colour = QUIET if task == "gemm" else STRATEGY[answer.question.strategy]
        shapes += [
            _label(LEFT - 6, top + height / 2 + 4, "GEMM" if task == "gemm" else "collective", "end"),
            _rule(LEFT, top + height, LEFT + end * scale, top + height),
        ]
        for row in rows[rows["task"] == task].itertuples():
            x, width = LEFT + row.start_s * scale, (row.end_s - row.start_s) * scale
            tall = height * min(row.rate, 1.0)
            text = f"{row.rate:.0%} {row.limited_by}"
            shapes.append(_bar(x, top + height - tall, width, tall, colour, 0.55, f"{row.phase}: {text}"))
            if row.rate > 0 and width > 6.3 * len(text):
                shapes.append(_label(x + 4, top + height - 5, text))
    bottom = 4 + 2 * (height + 8)
    shapes += [
        _label(LEFT, bottom + 8, "0", "middle", QUIET),
        _label(LEFT + end * scale, bottom + 8, _ms(end), "end", QUIET),
    ]
    return _svg(bottom + 12, shapes, f"both have ended after {_ms(end)}")


def blame(answer: Answer) -> str:
    """A stacked bar a strategy: milliseconds beyond the longer kernel, by mechanism; gains to the left of zero."""
    rows = answer.explanation.outcomes
    most = max(sum(max(value, 0) for value in row.blame_s.values()) for row in rows)
    least = max(sum(max(-value, 0) for value in row.blame_s.values()) for row in rows)
    if most + least <= 0:
        return _text("Nothing is lost.")
    scale = (WIDTH - LEFT - RIGHT) / (most + least)
    zero = LEFT + least * scale
    names = list(SHORT_TITLES)
    shapes, used = [], []
    for place, row in enumerate(rows):
        y, right, left = 4 + 20 * place, zero, zero
        shapes.append(_label(LEFT - 6, y + 12, row.strategy, "end"))
        for name, value in row.blame_s.items():
            width = abs(value) * scale
            if width < 0.5:
                continue
            used.append(name)
            x = right if value > 0 else left - width
            right, left = (right + width, left) if value > 0 else (right, left - width)
            shapes.append(_bar(x, y, width, 15, BLAME[names.index(name)], about=f"{SHORT_TITLES[name]}: {_ms(value)}"))
        shapes.append(_label(right + 5, y + 12, _ms(row.lost_s) if row.lost_s > 1e-9 else "none", colour=QUIET))
    bottom = 4 + 20 * len(rows)
    shapes.append(_rule(zero, 0, zero, bottom, QUIET))
    place = 0
    for name in names:
        if name in used:
            x, y = LEFT + 150 * (place % 3), bottom + 6 + 16 * (place // 3)
            shapes += [
                _bar(x, y, 10, 10, BLAME[names.index(name)]),
                _label(x + 14, y + 9, SHORT_TITLES[name], colour=QUIET),
            ]
            place += 1
    about = "; ".join(f"{row.strategy} {_ms(max(row.lost_s, 0))}" for row in rows)
    return _svg(bottom + 8 + 16 * -(-place // 3), shapes, f"lost time: {about}")


def roofline(answer: Answer) -> str:
    """Reached TFLOP/s over operations per byte, both logarithmic, under what the GPU reaches at best."""
    gpu, gemm = answer.question.machine.gpu, answer.question.gemm
    peak, slope = gpu.matrix_tflops, gpu.hbm_gbs / 1e3
    low, high, top, floor = 0.0, 4.5, log10(peak) + 0.15, log10(slope)
    tall = 130

    def at(intensity: float, tflops: float) -> tuple[float, float]:
        x = LEFT + (log10(max(intensity, 1)) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return x, 6 + (top - max(log10(max(tflops, 1e-9)), floor)) / (top - floor) * tall

    start, knee, end = at(1, slope), at(peak / slope, peak), at(10**high, peak)
    x, y = at(gemm.intensity, answer.reached_tflops)
    shapes = [
        f'<polyline points="{" ".join(f"{px:.1f},{py:.1f}" for px, py in (start, knee, end))}" fill="none" '
        f'stroke="{QUIET}"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{BLAME[0]}"/>',
        _label(WIDTH - RIGHT, tall, f"{answer.reached_tflops:.0f} TFLOP/s at {gemm.intensity:.0f} flop/B", "end"),
        _label(LEFT - 6, at(1, peak)[1] + 4, f"{peak:.0f}", "end", QUIET),
        _label(LEFT - 6, at(1, peak)[1] + 18, "TFLOP/s", "end", QUIET),
        _rule(LEFT, tall + 8, WIDTH - RIGHT, tall + 8),
        *(_label(at(10**power, 1)[0], tall + 22, f"{10**power}", "middle", QUIET) for power in range(5)),
        _label(WIDTH - RIGHT + 6, tall + 22, "flop/B", colour=QUIET),
    ]  # fmt: skip
    return _svg(tall + 28, shapes, f"{answer.reached_tflops:.0f} TFLOP/s at {gemm.intensity:.0f} flop/B")
