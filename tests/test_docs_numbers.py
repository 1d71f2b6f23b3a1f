"""Numbers that stand in the text of docs/ are those of the published tables: each is worked out again here."""

import pytest

from c3lib.files import ROOT
from c3lib.finer_measured import reduced
from c3lib.judge_schedules import judge, scorecard
from c3lib.measured import read_measured

FINER, CARD = ((ROOT / "docs" / name).read_text() for name in ("finer_grain.md", "model_card.md"))
LARGE = 8 * 2**20


def says(text: str, *sentences: str) -> None:
    plain = " ".join(text.split())
    for sentence in sentences:
        assert sentence in plain


@pytest.fixture(scope="module")
def best():
    """The best schedule of each problem with large pieces, by transport."""
    rows = reduced(read_measured("h200_1", "ficco")[0])
    large = rows[(rows["piece_bytes"] >= LARGE) & (rows["schedule"] != "serial")]
    return large.loc[large.groupby(["transport", "problem"])["speedup"].idxmax()]


def test_how_many_problems_reach_nine_tenths_of_the_ideal(best):
    engine, kernel = (best[best["transport"] == name] for name in ("copy_engine", "sm_kernel"))
    count = len(engine)
    low, high = engine["of_ideal"].min(), engine["of_ideal"].max()
    reached = [int((part["of_ideal"] >= 0.9).sum()) for part in (engine, kernel)]
    words = ["none", *map(str, range(1, count + 1))]
    fractions = [words[int((part["fraction_of_ideal"] >= 0.9).sum())] for part in (engine, kernel)]
    says(
        FINER,
        f"gains {low:.2f} to {high:.2f} of the ideal speedup (S / I): 0.90 and more on {reached[0]} of {count} "
        f"problems, and by SM kernel on {reached[1]} of {count}.",
        f"(S - 1) / (I - 1), it is 0.9 on {fractions[0]} and on {fractions[1]}.",
    )
    says(CARD, f"missed on {count - reached[0]} of {count}** by copy engine")


def test_coarser_pieces_reach_more(best):
    engine = best[best["transport"] == "copy_engine"].set_index("problem")["of_ideal"]
    two = {f"{engine[f'{shape}-2-pieces']:.2f}" for shape in ("g1-r1", "g5-r1") if f"{shape}-2-pieces" in engine}
    assert len(two) == 1
    says(FINER, f"reach {two.pop()} in 2 pieces, one of them {engine['g1-r1-4-pieces']:.2f} in 4.")


def test_how_far_the_model_is_from_what_was_measured():
    scores = scorecard(judge("h200_1"))
    mine = scores[scores["group"] == "overlapped"].set_index(["way", "predictor"])
    off = {key: f"{row['mean'] * 100:.1f} %" for key, row in mine[mine["by"] == "over"].iterrows()}
    naive = {key: f"{row['mean'] * 100:.0f}" for key, row in mine[mine["by"] == "over"].iterrows()}
    count = mine.iloc[0]["configurations"]
    says(
        CARD,
        f"{count} configurations that overlap: off by {off['isolated', 'model']} on average with",
        f"by {off['constants', 'model']} from constants alone (perfect overlap: {naive['isolated', 'max']} and "
        f"{naive['constants', 'max']} %, no overlap: {naive['isolated', 'sum']} and {naive['constants', 'sum']} %)",
    )
