"""c3 advise from the shell and for tables: the same numbers whichever way is asked, whole files or none."""

import csv
import json
import re
import sys
import time
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import c3lib
from c3lib.advisor import table as tables
from c3lib.advisor import table_files
from c3lib.advisor.table import ADVICE, NEEDED, advise_table
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import DATA, ROOT
from c3lib.hardware import load_node
from c3lib.suites import random_suite
from c3lib.sweeps import read_sweep, sweep
from c3lib.workload import Collective, Gemm

HEAD = "m,n,k,collective,nbytes"
ROW = "8192,8192,8192,all-gather,939524096"


def invoke(*words: str):
    return CliRunner().invoke(app, ["advise", *words])


def write(folder, *lines: str, name="in.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def refused(folder, *lines: str, says: str, **more) -> None:
    path, out = write(folder, *lines), folder / "out.csv"
    with pytest.raises(C3Error) as error:
        advise_table(path, out, **more)
    assert says in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(item.name for item in folder.iterdir()) == ["in.csv"], "nothing was written"


# --- one answer, whichever way it is asked ---


@pytest.mark.parametrize("node", ["h200_2", "mi300x_8"])
def test_shell_python_csv_and_parquet_give_the_same_numbers(tmp_path, node):
    there = load_node(node)
    pairs = [(pair.gemm, pair.collective) for pair in random_suite(5, there, seed=8)] + [
        (Gemm(64, 64, 64, "fp8"), Collective("all-to-all", 0, there.ranks))
    ]
    lines = [f"{g.m},{g.n},{g.k},{g.dtype},{c.kind},{c.nbytes},{node}" for g, c in pairs]
    source = write(tmp_path, "m,n,k,dtype,collective,nbytes,node", *lines)
    for name in ("out.csv", "out.parquet"):
        assert advise_table(source, tmp_path / name) == len(pairs)
    by_csv = rows_of(tmp_path / "out.csv")
    by_parquet = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for (gemm, collective), text, cells in zip(pairs, by_csv, by_parquet, strict=True):
        asked = c3lib.advise(gemm, collective, node)
        words = ("--gemm", str(gemm), "--dtype", gemm.dtype, "--collective", collective.kind)
        told = json.loads(invoke(*words, "--size", str(collective.nbytes), "--node", node, "--json").stdout)
        for name in ADVICE:
            value = getattr(asked, name)
            same = value if not isinstance(value, float) else pytest.approx(value, rel=1e-9)
            assert told[name] == same, name
            assert cells[name] == same, name
            read = float(text[name]) if isinstance(value, float) else text[name]
            assert read == (same if isinstance(value, float) else "" if value is None else str(value)), name


def test_a_model_is_the_same_by_shell_and_python():
    path = DATA / "models" / "mixtral-8x7b.json"
    words = ("--config", str(path), "--tokens", "4096", "--fsdp", "8", "--ep", "8", "--node", "h200_8")
    told = json.loads(invoke(*words, "--json").stdout)
    asked = c3lib.advise_model(path, c3lib.Parallelism(4096, fsdp=8, ep=8), "h200_8")
    assert told == json.loads(json.dumps(asked.to_dict()))
    assert invoke(*words).stdout == f"{asked}\n"


def test_a_piece_of_a_model_is_the_same_in_a_table(tmp_path):
    """What one group of a model is told of a GEMM, the table says of the same pair among as many ranks."""
    found = c3lib.advise_model(DATA / "models" / "llama-3-8b.json", c3lib.Parallelism(8192, fsdp=4), "mi300x_8")
    (layer,) = found.layers
    lines = [f"{p.gemm.m},{p.gemm.n},{p.gemm.k},all-gather,{p.collective.nbytes},4" for p in layer.pieces]
    advise_table(write(tmp_path, f"{HEAD},ranks", *lines), tmp_path / "out.csv", strategies=[layer.strategy])
    for piece, row in zip(layer.pieces, rows_of(tmp_path / "out.csv"), strict=True):
        assert row["strategy"] == piece.strategy
        assert float(row["time_s"]) == pytest.approx(piece.time_s)


def test_strategies_and_dtype_are_heeded(tmp_path):
    source, out = write(tmp_path, HEAD, ROW), tmp_path / "out.csv"
    for words, asked in (
        (
            ("--strategy", "c3_sp"),
            c3lib.advise(Gemm(8192, 8192, 8192), Collective("all-gather", 939524096, 8), strategies=["c3_sp"]),
        ),
        (("--dtype", "fp8"), c3lib.advise(Gemm(8192, 8192, 8192, "fp8"), Collective("all-gather", 939524096, 8))),
    ):
        assert invoke("--table", str(source), "--out", str(out), *words).exit_code == 0
        (row,) = rows_of(out)
        assert (row["strategy"], float(row["time_s"])) == (asked.strategy, pytest.approx(asked.time_s))


# --- tables ---


def test_columns_are_carried_along_and_text_is_kept(tmp_path):
    source = write(tmp_path, f"name,{HEAD},note", f'"a, b",{ROW},"say ""so"""', "", f"é,{ROW},")
    advise_table(source, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as handle:
        assert handle.readline().strip().split(",") == ["name", *NEEDED, "note", *ADVICE]
    first, second = rows_of(tmp_path / "out.csv")
    assert (first["name"], first["note"], second["name"], second["note"]) == ("a, b", 'say "so"', "é", "")
    table = pyarrow.table({
        "when": pyarrow.array([None, 3.5]), **{key: [8192, 64] for key in "mnk"},
        "collective": ["all-gather"] * 2, "nbytes": pyarrow.array([2**20, 2**30], pyarrow.int64()),
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    advise_table(tmp_path / "in.parquet", tmp_path / "out.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.column_names == [*table.column_names, *ADVICE]
    assert found.select(table.column_names).to_pylist() == table.to_pylist()
    for name in ADVICE:  # as it is, also where the whole column is empty
        assert found.schema.field(name).type != pyarrow.null(), name
    assert found.schema.field("fall_back_nbytes").type == found.schema.field("dma_from_nbytes").type == pyarrow.int64()


def test_a_table_has_all_that_json_says_of_the_advice():
    said = set(c3lib.advise(Gemm(64, 64, 64), Collective("all-gather", 2**20, 8)).to_dict())
    assert said - set(ADVICE) == {"node", "gemm", "collective"}, "what was asked"


def test_rows_of_several_nodes_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK", 3)
    nodes = ["mi300x_8", "h200_2", "h200_8", "h200_2", "mi300x_8", "h200_1", "h200_2"]
    advise_table(write(tmp_path, f"{HEAD},node", *(f"{ROW},{node}" for node in nodes)), tmp_path / "out.csv")
    for node, row in zip(nodes, rows_of(tmp_path / "out.csv"), strict=True):
        asked = c3lib.advise(Gemm(8192, 8192, 8192), Collective("all-gather", 939524096, load_node(node).ranks), node)
        assert (row["node"], float(row["time_s"])) == (node, pytest.approx(asked.time_s))


def test_ten_thousand_rows_take_seconds_and_the_model_is_asked_in_batches(tmp_path, monkeypatch):
    calls = []
    whole = tables.advise_all
    monkeypatch.setattr(tables, "advise_all", lambda pairs, *rest: calls.append(len(pairs)) or whole(pairs, *rest))
    pairs = random_suite(10_000, load_node("mi300x_8"), seed=4)
    lines = [f"{p.gemm.m},{p.gemm.n},{p.gemm.k},{p.collective.kind},{p.collective.nbytes}" for p in pairs]
    source, start = write(tmp_path, HEAD, *lines), time.process_time()
    assert advise_table(source, tmp_path / "out.csv") == 10_000
    assert len(calls) == -(-10_000 // tables.CHUNK)
    assert time.process_time() - start < 60  # a few seconds on an idle core
    assert len(rows_of(tmp_path / "out.csv")) == 10_000


@pytest.mark.parametrize(("row", "says"), [
    ("8192,8192,8192,all-gather", "line 3: 4 values for 5 columns"),
    ("8192,8192,8192,all-gather,1,2", "line 3: 6 values for 5 columns"),
    ("x,8192,8192,all-gather,1", "line 3, column 'm': m must be a whole number of at least 1, not 'x'"),
    ("8192,0,8192,all-gather,1", "line 3, column 'n'"),
    ("8192,8192,8192.5,all-gather,1", "line 3, column 'k'"),
    ("8192,8192,-1,all-gather,1", "line 3, column 'k'"),
    ("8192,8192,8192,all-reduce,1", "line 3, column 'collective': unknown collective 'all-reduce'"),
    ("8192,8192,8192,all-gather,", "line 3, column 'nbytes'"),
    ("8192,8192,8192,all-gather,-5", "line 3, column 'nbytes'"),
    ("8192,8192,8192,all-gather,896MiB", "line 3, column 'nbytes'"),
    ("9999999999999999999,1,1,all-gather,1", "line 3, column 'm'"),
    ("٣,1,1,all-gather,1", "line 3, column 'm'"),
    (f"{'9' * 5000},1,1,all-gather,1", "line 3, column 'm'"),
    ('"8192,1,1,all-gather,1', "line 3"),
    (f"{'x' * 200_000},1,1,all-gather,1", "line 3: more than 65536 characters in a line"),
])  # fmt: skip
def test_a_bad_row_is_named_by_line_and_column(tmp_path, row, says):
    refused(tmp_path, HEAD, ROW, row, ROW, says=says)


def test_bad_cells_of_columns_that_may_be_there(tmp_path):
    refused(tmp_path, f"{HEAD},node", f"{ROW},h200_3", says="line 2, column 'node': unknown node 'h200_3'")
    refused(tmp_path, f"{HEAD},dtype", f"{ROW},int8", says="line 2, column 'dtype': unknown dtype 'int8'")
    refused(tmp_path, f"{HEAD},ranks", f"{ROW},9", says="line 2, column 'ranks': 9 ranks, but node mi300x_8 has 8")
    refused(tmp_path, f"{HEAD},ranks", f"{ROW},0", says="line 2, column 'ranks'")


def test_no_row_takes_all_memory(tmp_path):
    """Commas without end, and a quote that is never closed."""
    refused(tmp_path, "," * 10_000_000, says="line 1: more than 65536 characters in a line")
    refused(tmp_path, HEAD, ROW, '"' + "\n" * 200_000, says="100 lines in a row; is a quote not closed?")
    refused(tmp_path, HEAD, '"', *['","'] * 100_000, says="100 lines in a row")


def parquet(folder, rows: int, more=(), name="in.parquet"):
    """A table of pairs that are all the same, with more columns."""
    columns = {**dict.fromkeys("mnk", [64] * rows), "collective": ["all-gather"] * rows, "nbytes": [2**20] * rows}
    path = folder / name
    pyarrow.parquet.write_table(pyarrow.table(columns | dict(more)), path)
    return path


def test_a_small_file_that_unpacks_to_much_text_is_refused_before_it_is(tmp_path):
    """In Parquet one long value may stand in every row for next to nothing."""
    rows = 20_000
    long = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows), pyarrow.array(["y" * 200_000]))
    for column in (
        long,
        long.cast(pyarrow.dictionary(pyarrow.int64(), pyarrow.binary())),
        long[:700].dictionary_decode(),
    ):
        path = parquet(tmp_path, len(column), {"note": column})
        assert path.stat().st_size < 2**20
        del column
        tracemalloc.start()
        before = pyarrow.total_allocated_bytes()
        with pytest.raises(C3Error, match=r"in\.parquet: more than 134217728 bytes of text in its cells; split it"):
            advise_table(path, tmp_path / "out.csv")
        assert tracemalloc.get_traced_memory()[1] + pyarrow.total_allocated_bytes() - before < 2**25
        tracemalloc.stop()
    assert not (tmp_path / "out.csv").exists()


def test_text_in_parquet_is_carried_along_however_it_is_stored(tmp_path):
    """Dictionaries, none, and what a writer begins as one and goes on without: more than a batch, and empty cells."""
    words = [None if index % 7 == 0 else f"é{index % 50}" * (index % 3) for index in range(3000)]
    text = pyarrow.array(words)
    more = {"a": text, "b": text.dictionary_encode(), "c": pyarrow.array(words, pyarrow.large_string()),
            "d": pyarrow.array([word and word.encode() for word in words], pyarrow.binary()),
            "e": pyarrow.array(range(3000)).dictionary_encode(), "f": pyarrow.nulls(3000)}  # fmt: skip
    path = parquet(tmp_path, 3000, more)
    pyarrow.parquet.write_table(
        pyarrow.parquet.read_table(path), path, dictionary_pagesize_limit=64, row_group_size=1700
    )
    advise_table(path, tmp_path / "out.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    for name, column in more.items():
        assert found[name].to_pylist() == column.to_pylist(), name


def test_too_many_columns_and_cells_are_refused(tmp_path, monkeypatch):
    many = {f"c{index}": [1, 2] for index in range(996)}
    says = "1001 columns, more than 1000; leave some out"
    refused(tmp_path, ",".join([HEAD, *many]), f"{ROW}{',' * 996}", says=says)
    with pytest.raises(C3Error, match=says):
        advise_table(parquet(tmp_path, 2, many), tmp_path / "out.csv")
    (tmp_path / "in.parquet").unlink()
    monkeypatch.setattr(table_files, "MOST_CELLS", 11)
    says = "more than 11 cells, 6 in a row; leave columns out, or split it"
    refused(tmp_path, f"{HEAD},note", f"{ROW},", f"{ROW},", says=says)
    with pytest.raises(C3Error, match=says):
        advise_table(parquet(tmp_path, 2, {"note": ["", ""]}), tmp_path / "out.csv")


@pytest.mark.parametrize("column", [
    pyarrow.array([[1]]), pyarrow.array([{"a": 1}]), pyarrow.array([b"four"], pyarrow.binary(4)),
    pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
])  # fmt: skip
def test_cells_of_many_values_are_refused(tmp_path, column):
    with pytest.raises(C3Error, match=r"in\.parquet: column 'note' holds .+, not numbers, times or text"):
        advise_table(parquet(tmp_path, 1, {"note": column}), tmp_path / "out.csv")


def test_a_sweeps_table_can_be_advised_on(tmp_path):
    """Its name of the size is taken, and its columns of names, which are categories."""
    sweep(ROOT / "docs" / "examples" / "sweep.toml", tmp_path / "swept", workers=1)
    pairs = read_sweep(tmp_path / "swept", ["node", "m", "n", "k", "dtype", "collective", "total_bytes"])
    pairs = pairs.drop_duplicates().head(9)
    pairs.to_parquet(tmp_path / "in.parquet", index=False)
    pairs.to_csv(tmp_path / "in.csv", index=False)
    pairs.rename(columns={"total_bytes": "nbytes"}).to_csv(tmp_path / "named.csv", index=False)
    for name in ("in.parquet", "in.csv", "named.csv"):
        assert advise_table(tmp_path / name, tmp_path / f"{name}.out.csv") == len(pairs) > 1
    first, second, named = (rows_of(tmp_path / f"{name}.out.csv") for name in ("in.parquet", "in.csv", "named.csv"))
    assert first == second == [{key if key != "nbytes" else "total_bytes": row[key] for key in row} for row in named]


def test_the_size_has_one_name(tmp_path):
    both = "columns 'nbytes' and 'total_bytes' are two names of one size; leave one out"
    refused(tmp_path, f"{HEAD},total_bytes", f"{ROW},1", says=both)
    refused(tmp_path, "m,n,k,collective,total_bytes", "1,1,1,all-gather,-1", says="line 2, column 'total_bytes'")
    refused(tmp_path, "m,n,k,collective", "1,1,1,all-gather", says="column 'nbytes' is missing")
    refused(tmp_path, "m,n,k,total_bytes", "1,1,1,1", says="column 'collective' is missing")


def test_a_cell_that_may_be_missing_may_be_empty(tmp_path):
    source = write(tmp_path, f"dtype,node,ranks,{HEAD}", f",,,{ROW}", f"fp8,h200_8,2,{ROW}")
    advise_table(source, tmp_path / "out.csv", "h200_2")
    first, second = rows_of(tmp_path / "out.csv")
    assert (first["dtype"], first["node"], first["ranks"]) == ("", "", "")
    for row, gemm, ranks, node in (
        (first, Gemm(8192, 8192, 8192), 2, "h200_2"),
        (second, Gemm(8192, 8192, 8192, "fp8"), 2, "h200_8"),
    ):
        asked = c3lib.advise(gemm, Collective("all-gather", 939524096, ranks), node)
        assert float(row["time_s"]) == pytest.approx(asked.time_s)


def test_bad_tables(tmp_path, monkeypatch):
    refused(tmp_path, "m,n,k,nbytes", "1,1,1,1", says="column 'collective' is missing")
    refused(tmp_path, "", says="column 'm' is missing")
    refused(tmp_path, f"{HEAD},m", f"{ROW},1", says="column 'm' stands twice")
    refused(tmp_path, f"{HEAD},speedup", f"{ROW},1", says="column 'speedup' is one that the advice adds")
    monkeypatch.setattr(tables, "MOST_ROWS", 2)
    refused(tmp_path, HEAD, ROW, ROW, ROW, says="more than 2 rows")
    monkeypatch.setattr(table_files, "LARGEST_FILE", 20)
    refused(tmp_path, HEAD, ROW, says="larger than 20 bytes")


def test_bad_files(tmp_path):
    good, out = write(tmp_path, HEAD, ROW), tmp_path / "out.csv"
    latin = tmp_path / "latin.csv"
    latin.write_bytes(f"{HEAD},note\n{ROW},\xe9\n".encode("latin-1"))
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 and then nothing PAR1")
    (tmp_path / "folder.csv").mkdir()
    for source, target, says in (
        (tmp_path / "none.csv", out, "no such file"),
        (tmp_path / "folder.csv", out, "must be an ordinary file"),
        (tmp_path / "in.xlsx", out, "must end in .csv or .parquet"),
        (good, tmp_path / "out.txt", "must end in .csv or .parquet"),
        (good, tmp_path / "folder.csv", "it is a folder"),
        (latin, out, "not UTF-8"),
        (bad, out, "not a Parquet table"),
    ):
        with pytest.raises(C3Error, match=re.escape(says)) as error:
            advise_table(source, target)
        assert "\n" not in str(error.value)
    assert not out.exists()
    assert advise_table(write(tmp_path, HEAD), out) == 0
    assert out.read_text().startswith(HEAD)


def test_what_stood_there_before_stays_when_the_table_is_bad_or_the_user_has_enough(tmp_path, monkeypatch):
    out = write(tmp_path, "before", name="out.csv")
    with pytest.raises(C3Error):
        advise_table(write(tmp_path, HEAD, ROW, "x"), out)

    def enough(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "advise_all", enough)
    with pytest.raises(KeyboardInterrupt):
        advise_table(write(tmp_path, HEAD, ROW), out)
    assert out.read_text() == "before\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_a_table_may_be_replaced_by_its_own_advice(tmp_path):
    path = write(tmp_path, HEAD, ROW)
    assert advise_table(path, path) == 1
    assert (
        rows_of(path)[0]["strategy"]
        == c3lib.advise(Gemm(8192, 8192, 8192), Collective("all-gather", 939524096, 8)).strategy
    )


def test_without_pyarrow_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(C3Error, match=re.escape("Parquet (CSV does not) needs pyarrow: `make test` sets it up")):
        advise_table(write(tmp_path, HEAD, ROW), tmp_path / "out.parquet")
    assert advise_table(write(tmp_path, HEAD, ROW), tmp_path / "out.csv") == 1


cells = st.one_of(
    st.integers(-2, 2**54).map(str), st.sampled_from(["all-gather", "all-to-all", "", "bf16"]), st.text(max_size=6)
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(
    st.binary(max_size=120),
    st.lists(st.lists(cells, min_size=4, max_size=6), max_size=4).map(
        lambda rows: "\n".join([HEAD, *(",".join(row) for row in rows)]).encode("utf-8", "surrogatepass")
    ),
))  # fmt: skip
def test_any_table_is_advised_on_or_refused_in_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(content)
    said = ""
    try:
        advise_table(path, path.with_name("any_out.csv"))
    except C3Error as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 500


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_parquet_file_is_read_or_refused_in_one_sentence(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    good = folder / "good.parquet"
    if not good.exists():
        columns = {"m": [64] * 9, "n": [64] * 9, "k": [64] * 9, "collective": ["all-gather"] * 9, "nbytes": [2**20] * 9}
        pyarrow.parquet.write_table(pyarrow.table(columns), good)
    content = bytearray(good.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "damaged.parquet"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    said = ""
    try:
        advise_table(path, folder / "damaged_out.csv")
    except C3Error as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 500


# --- the shell ---


@pytest.mark.parametrize(("words", "says"), [
    ([], "say what to advise on"),
    (["--gemm", "1x1x1"], "--gemm needs --collective and --size too"),
    (["--size", "1MiB"], "--size needs --gemm and --collective too"),
    (["--config", "x.json"], "--config needs --tokens too"),
    (["--tokens", "8"], "--tokens needs --config too"),
    (["--table", "x.csv"], "--table needs --out too"),
    (["--gemm", "1x1x1", "--table", "x.csv"], "--gemm and --table are two ways to ask; give one"),
    (["--table", "x.csv", "--out", "y.csv", "--fsdp", "8"], "--fsdp, --tp and --ep are of a model"),
    (["--config", "none.json", "--tokens", "8", "--fsdp", "8"], "none.json: no such file"),
    (["--config", str(DATA / "models" / "llama-3-8b.json"), "--tokens", "0", "--fsdp", "8"], "tokens must be"),
    (["--config", str(DATA / "models" / "llama-3-8b.json"), "--tokens", "8", "--fsdp", "8", "--dtype", "int4"], "int4"),
    (["--gemm", "axb", "--collective", "all-gather", "--size", "1MiB"], "gemm must read MxNxK"),
    (["--gemm", "1x1x1", "--collective", "all-gather", "--size", "lots"], "size must read like"),
    (["--gemm", "1x1x1", "--collective", "all-gather", "--size", "1MiB", "--node", "h200"], "unknown node 'h200'"),
    (["--gemm", "1x1x1", "--collective", "all-gather", "--size", "1MiB", "--strategy", "x"], "unknown strategy 'x'"),
])  # fmt: skip
def test_what_is_typed_wrongly_is_one_sentence(words, says):
    result = invoke(*words)
    assert result.exit_code == 2
    assert re.fullmatch(r"c3: .+\n", result.stderr)
    assert says in result.stderr
