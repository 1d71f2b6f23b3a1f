"""Every scenario of a suite under every strategy, a group a scenario, an arm a strategy."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from c3lib.backends.regions import RegionBackend
from c3lib.errors import C3Error
from c3lib.experiment import rows_of
from c3lib.measure.journal import Journal
from c3lib.measure.rounds import Group
from c3lib.strategy import STRATEGIES, Strategy
from c3lib.suites import load_suite
from c3lib.workload import Scenario

SWEPT = [how.name for how in STRATEGIES.values() if how.partition == "sweep"]
"""Strategies whose setting is what won a sweep."""


def scenarios_of(backend: RegionBackend, suite: str) -> list[Scenario]:
    """The scenarios of a suite. Raises :class:`C3Error` for one whose collective has more ranks than the node."""
    scenarios = load_suite(suite, backend.node.ranks)
    for scenario in scenarios:
        if scenario.collective.ranks > backend.node.ranks:
            raise C3Error(f"suite {suite}: scenario {scenario.name} wants more ranks than {backend.node.name} has")
    return scenarios


def suite_groups(backend: RegionBackend, suite: str, journal: Journal) -> list[Group]:
    """Groups for :func:`c3lib.measure.rounds.run_rounds`; rows carry the name of their table in ``table``.

    Those of the suite carry what was asked for in ``setting`` too, which stays in the journal: a column ``blocks``
    tells what ran, and a library may run fewer thread blocks than it was asked for.
    """
    scenarios = scenarios_of(backend, suite)
    restore(backend, journal)
    return [
        Group(
            scenario.name,
            partial(backend.open, scenario),
            {how.name: partial(_arm, backend, suite, scenario, how) for how in STRATEGIES.values()},
        )
        for scenario in scenarios
    ]


def _arm(
    backend: RegionBackend, suite: str, scenario: Scenario, how: Strategy, repetition: int
) -> list[dict[str, Any]]:
    before = len(backend.sweeps)
    times = backend.run([scenario], how, repetition)
    rows = rows_of(backend.node, suite, backend, [scenario], how, repetition, times)
    named = {"node": backend.node.name, "evidence": backend.evidence, "suite": suite}
    swept = [{"table": "sweep", **named, **row} for row in backend.sweeps[before:]]
    more = {"table": "suite", "setting": asdict(backend.setting(scenario, how))}
    return swept + [{**more, **row} for row in rows.astype(object).to_dict("records")]


def restore(backend: RegionBackend, journal: Journal) -> None:
    """A sweep that was settled before the run was cut short stays settled, by the ``setting`` of its rows."""
    for row in journal.rows:
        if "setting" in row and row["strategy"] in SWEPT:
            backend.settle(row["scenario"], row["strategy"], type(backend.whole)(**row["setting"]))
