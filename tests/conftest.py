"""Tiers of tests, and the notebooks that tests write."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import amd_layers
import pytest
from hypothesis import settings

TIERS = ("unit", "notebooks", "lab", "amd", "device")

# A background job inherits an ignored Ctrl-C, and so would the commands that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two cores shared with other work make any deadline flaky; the rest stays hypothesis' own (in CI: derandomized).
settings.register_profile("c3lib", settings(), deadline=None)
settings.load_profile("c3lib")


@pytest.fixture
def write_notebook() -> Callable[..., Path]:
    """``write_notebook(path, *code, parameters=...)`` writes a notebook: a title, a parameters cell, then the code."""
    import nbformat  # here, since the machine that has the GPU need not have it
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    def write(path: Path, *code: str, parameters: str = "out = '.'\nnode = 'mi300x_8'\nrepeats = 9") -> Path:
        cells = [new_markdown_cell("# A title"), new_code_cell(parameters, metadata={"tags": ["parameters"]})]
        cells += [new_code_cell(text) for text in code]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
        return path

    return write


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_device = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker("unit")
        if item.get_closest_marker("device") and not has_device:
            item.add_marker(pytest.mark.skip(reason="no GPU"))


def _tier_counts(config: pytest.Config) -> dict[str, tuple[int, set[str]]]:
    """For each tier: how many tests ran, and the reasons why others were skipped."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    counts = {}
    for tier in TIERS:
        reports = {
            outcome: [report for report in reporter.stats.get(outcome, []) if tier in getattr(report, "keywords", ())]
            for outcome in ("passed", "failed", "error", "skipped")
        }
        skipped = reports.pop("skipped")
        reasons = {re.sub("^Skipped: ", "", report.longrepr[2]) for report in skipped if report.longrepr}
        counts[tier] = (sum(map(len, reports.values())), reasons)
    return counts


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    said = []
    for tier, (ran, reasons) in _tier_counts(config).items():
        why = "; ".join(sorted(reasons)) or "no test selected"
        said.append(f"{tier}: {ran} run" if ran else f"{tier}: NOT RUN ({why})")
    amd_layers.say(terminalreporter.write_line, _layers(config))
    terminalreporter.write_line("tiers  " + " | ".join(said))


def _layers(config: pytest.Config) -> dict[str, amd_layers.Layer]:
    stats = config.pluginmanager.get_plugin("terminalreporter").stats
    return amd_layers.ran_and_why_not(
        report for outcome in ("passed", "failed", "error", "skipped") for report in stats.get(outcome, [])
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Who asks for the tier device or amd by name, and runs none of it or lacks a layer, must not see a success."""
    asked = session.config.getoption("markexpr", "").strip()
    if hasattr(session.config, "workerinput"):
        return
    missing = asked == "device" and _tier_counts(session.config)["device"][0] == 0
    missing |= asked == "amd" and any(layer.could_not_be_had for layer in _layers(session.config).values())
    if missing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
