"""Arms in rounds: each repetition runs every arm of a group once, in an order drawn by the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

from tqdm import tqdm

from c3lib.measure.journal import Journal

Rows = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Group:
    """Arms that share a set-up. ``load`` prepares the GPU; an arm takes the repetition and gives its rows."""

    name: str
    load: Callable[[], None]
    arms: Mapping[str, Callable[[int], Rows]]


def run_rounds(groups: list[Group], journal: Journal, repeats: int, seed: int, what: str, quiet: bool = False) -> None:
    """Run all that the journal does not have yet; groups in an order of chance, arms shuffled anew each repetition.

    Raises :class:`C3Error` where the journal has rows of other arms, and what an arm raises.
    """
    rng = random.Random(seed)
    total = sum(len(group.arms) for group in groups) * repeats
    journal.require((group.name, arm, turn) for group in groups for arm in group.arms for turn in range(repeats))
    with tqdm(total=total, desc=what, disable=quiet, unit="arm", leave=True) as bar:
        for group in rng.sample(groups, len(groups)):
            loaded = False
            for turn in range(repeats):
                for arm in rng.sample(sorted(group.arms), len(group.arms)):
                    key = (group.name, arm, turn)
                    if not journal.done(key):
                        if not loaded:
                            group.load()
                            loaded = True
                        journal.add(key, group.arms[arm](turn))
                    bar.update()
