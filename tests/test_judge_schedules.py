"""Predictions of schedules against tables that the model itself wrote, or that a known rule wrote."""

import pandas as pd
import pytest

from c3lib import judge_schedules
from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, Problem, build
from c3lib.hardware import load_node
from c3lib.judge_schedules import alone_s, cases, given, judge, scorecard, verdict
from c3lib.model.pieces import lanes
from c3lib.model.pipeline import Lanes, simulate
from c3lib.results import write_table

NODE = "h200_1"
PROBLEM = Problem.all_gather(8192, 12288, 8192, 8)


def rows_of(lane, schedule, transport, withheld, stretch=(1.0, 1.0)):
    """Rows of a schedule as the table has them, from lanes; alone times stretched, which the model is then given."""
    kernels_s, exchanges_s = (part * factor for part, factor in zip(alone_s(lane), stretch, strict=True))
    both_s = simulate(given(lane, kernels_s, exchanges_s)).time_s
    common = {
        "node": NODE, "evidence": "measured", "problem": "one", "collective": "all-gather", "m": PROBLEM.m[0],
        "n": PROBLEM.n, "k": PROBLEM.k, "dtype": "bf16", "ranks": 8, "pieces": 8, "piece_bytes": PROBLEM.piece_nbytes,
        "received_bytes": PROBLEM.received_nbytes(), "schedule": schedule,
    }  # fmt: skip
    found = []
    for name, time_s in (("both", both_s), ("kernels", kernels_s), ("exchanges", exchanges_s)):
        moves, works = name != "kernels", name != "exchanges"
        found.append(
            {
                **common,
                "lanes": name,
                "transport": transport if moves else "none",
                "blocks": 0,
                "sms_withheld": withheld,
                "copies": 7,
                "operations": 7,
                "memory_bytes": 1,
                "repetition": 0,
                "time_s": time_s,
                "gemm_start_s": 0.0 if works else None,
                "gemm_end_s": kernels_s if works else None,
                "exchange_start_s": 0.0 if moves else None,
                "exchange_end_s": exchanges_s if moves else None,
                "overlap_s": 0.0,
                "step_ends_us": "none",
                **dict.fromkeys(("sm_mhz_before", "sm_mhz", "power_w_before", "power_w", "temperature_c"), 1.0),
                "verified": True,
                "path": "a test's",
            }
        )
    return found


def written(tmp_path, change=lambda rows: rows, stretch=(1.0, 1.0)):
    rows = []
    for transport, name, withheld in (("copy_engine", "dma", 0), ("sm_kernel", "cu", 8)):
        programs = [build(schedule, PROBLEM) for schedule in SCHEDULES]
        for schedule, lane in zip(SCHEDULES, lanes(programs, load_node(NODE), name), strict=True):
            rows += rows_of(lane, schedule, transport, withheld if schedule != "serial" else 0, stretch)
    frame = pd.DataFrame(rows).drop_duplicates(["schedule", "lanes", "transport", "sms_withheld"])
    write_table(change(frame), tmp_path / NODE / "ficco.csv")
    return tmp_path


def test_a_table_that_the_model_wrote_is_predicted_exactly(tmp_path):
    judged = judge(NODE, written(tmp_path))
    assert len(judged) == 12 * 2 * 3
    assert judged[judged["predictor"] == "model"]["error"].abs().max() < 1e-9
    overlapped = judged[judged["schedule"] != "serial"]
    assert (overlapped[overlapped["predictor"] == "max"]["error"] < 0).all()
    assert (overlapped[overlapped["predictor"] == "sum"]["error"] > 0).all()


def test_given_times_make_up_for_lanes_that_constants_do_not_know(tmp_path):
    judged = judge(NODE, written(tmp_path, stretch=(1.3, 0.8)))
    model = judged[judged["predictor"] == "model"].groupby("way")["error"]
    assert model.apply(lambda error: error.abs().max())["isolated"] < 1e-9
    assert model.apply(lambda error: error.abs().mean())["constants"] > 0.1


def test_errors_are_signed_and_scored_with_serial_apart(tmp_path):
    slower = lambda rows: rows.assign(  # noqa: E731
        time_s=rows["time_s"].where((rows["lanes"] != "both") | (rows["schedule"] == "serial"), rows["time_s"] * 1.25)
    )
    scores = scorecard(judge(NODE, written(tmp_path, slower)))
    mine = scores[(scores["way"] == "isolated") & (scores["predictor"] == "model")].set_index("group")
    assert mine.loc["overlapped", "mean"] == pytest.approx(0.2)
    assert mine.loc["overlapped", "bias"] == pytest.approx(-0.2)
    assert mine.loc["all", "mean"] == pytest.approx(0.2 * 10 / 12)
    assert verdict(scores) == {"group": "overlapped", "target": 0.10, "mean": pytest.approx(0.2), "met": False}


def test_stretched_lanes_take_the_given_times():
    lane = Lanes((1.0, 2.0), (2.0, 3.0), (0.1, 0.1), (0, 1), (0.5, 0.5), (4.0,), (1.0,))
    assert alone_s(given(lane, 6.0, 2.5)) == pytest.approx((6.0, 2.5))
    assert given(lane, 6.0, 2.5).beside_s == pytest.approx((4.0, 6.0))
    assert given(lane, 6.0, 2.5).launch_s == lane.launch_s


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rows: rows.assign(verified=False), "one under serial failed its check, so it judges nothing"),
        (lambda rows: rows[rows["lanes"] != "kernels"], "one under serial: .*: its kernels were not measured alone"),
        (
            lambda rows: rows[(rows["lanes"] != "exchanges") | (rows["schedule"] != "shard_p2p")],
            "one under shard_p2p: column lanes: its exchanges were not measured alone",
        ),
        (lambda rows: rows.assign(gemm_end_s=rows["gemm_start_s"]), "its kernels were not measured alone, or took no"),
        (lambda rows: rows[rows["schedule"] == "serial"], "ficco.csv: one: column schedule: nothing but serial"),
        (lambda rows: rows[rows["schedule"] != "serial"], "ficco.csv: one .*: repetition must be one in which serial"),
        (lambda rows: pd.concat([rows, rows.iloc[:1]]), "ficco.csv: one .*: repetition must name each run once, not 0"),
        (lambda rows: rows[rows["lanes"] != "both"], "holds no schedule with both lanes"),
    ],
)
def test_tables_that_judge_nothing_are_refused(tmp_path, change, sentence):
    with pytest.raises(C3Error, match=sentence):
        cases(NODE, written(tmp_path, change))


def test_without_what_overlaps_there_is_no_verdict(tmp_path):
    scores = scorecard(judge(NODE, written(tmp_path)))
    with pytest.raises(C3Error, match="scores: expected those of the model over all that overlaps"):
        verdict(scores[scores["group"] == "all"])


def test_the_way_and_the_target_are_named():
    assert set(judge_schedules.WAYS) == {"isolated", "constants"}
    assert judge_schedules.TARGET == 0.10
