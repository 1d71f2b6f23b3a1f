"""One notebook: published when it runs to its end, and only then; parameters in their types; its dependencies known."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib import book
from c3lib.errors import C3Error
from c3lib.notebook import convert

SAVE = "from pathlib import Path\nPath(out, 'a.svg').write_text('new')"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


def test_success_publishes_the_files_and_records_what_they_depend_on(tmp_path, write_notebook):
    data = tmp_path / "data file.csv"
    data.write_text("x")
    notebook = write_notebook(
        tmp_path / "notebooks" / "01_x.ipynb",
        f"from c3lib.files import read_text\nread_text({str(data)!r})\nimport os\nprint(os.path.basename(os.getcwd()))",
        SAVE,
        "Path(out, 'types.txt').write_text(f'{node!r} {repeats!r}')",
    )
    out, build = tmp_path / "figures", tmp_path / "build"

    result = book.run(notebook, out, build, {"repeats": "3"}, {"node": "7", "backend": "model"})

    assert (out / "a.svg").read_text() == "new"
    assert (out / "types.txt").read_text() == "'7' 3"  # each in the type of its default
    assert {path.name for path in result.published} == {"a.svg", "types.txt"}
    assert sorted(path.name for path in build.iterdir()) == ["01_x.d", "01_x.done", "01_x.ipynb", "01_x.json"]
    rules = (build / "01_x.d").read_text()
    assert str(data).replace(" ", "\\ ") + ":" in rules
    assert {data, notebook} < set(result.dependencies)
    assert {"files.py", "errors.py", "__init__.py"} == {
        path.name for path in result.dependencies if path.suffix == ".py"
    }
    executed = cells(build / "01_x.ipynb")
    assert len(executed) == 6  # title, parameters, injected parameters, three of ours: no asking cell
    assert executed[3]["outputs"][0]["text"] == ["notebooks\n"]
    assert str(tmp_path) not in "".join(executed[2]["source"])
    assert 'out = "../figures"' in "".join(executed[2]["source"])


def test_failure_names_the_cell_and_leaves_what_was_published(tmp_path, write_notebook):
    notebook = write_notebook(tmp_path / "01_x.ipynb", SAVE, "\nraise ValueError('too small')")
    out = tmp_path / "figures"
    out.mkdir()
    (out / "a.svg").write_text("old")

    with pytest.raises(
        C3Error, match=r"01_x\.ipynb: cell 4 \(`raise ValueError.*failed: ValueError: too small"
    ) as caught:
        book.run(notebook, out, tmp_path / "build")

    assert "01_x.failed.ipynb" in str(caught.value)
    assert (out / "a.svg").read_text() == "old"
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["01_x.failed.ipynb"]


def test_failure_by_c3error_is_its_sentence(tmp_path, write_notebook, capsys):
    code = "from c3lib.errors import C3Error\nraise C3Error('node.toml: key x is missing')"
    notebook = write_notebook(tmp_path / "01_x.ipynb", code)
    status = book.main([str(notebook), "--out", str(tmp_path / "figures"), "--build", str(tmp_path / "build")])
    assert status == 1
    assert (
        "cell 3 (`from c3lib.errors import C3Error`) failed: node.toml: key x is missing\n" in capsys.readouterr().err
    )


def test_a_notebook_that_exits_early_is_not_published(tmp_path, write_notebook):
    notebook = write_notebook(tmp_path / "01_x.ipynb", SAVE, "raise SystemExit")
    with pytest.raises(C3Error, match="ended before its last cell"):
        book.run(notebook, tmp_path / "figures", tmp_path / "build")
    assert not (tmp_path / "figures").exists()


def test_a_second_run_keeps_equal_files_and_removes_stale_ones(tmp_path, write_notebook):
    out, build = tmp_path / "figures", tmp_path / "build"
    same = "from pathlib import Path\nPath(out, 'same.svg').write_text('same')"
    book.run(write_notebook(tmp_path / "01_x.ipynb", same, "Path(out, 'stale.svg').write_text('1')"), out, build)
    os.utime(out / "same.svg", (1e9, 1e9))
    (out / "of_others.svg").write_text("2")

    book.run(write_notebook(tmp_path / "01_x.ipynb", same), out, build)

    assert sorted(path.name for path in out.iterdir()) == ["of_others.svg", "same.svg"]
    assert (out / "same.svg").stat().st_mtime == 1e9


def test_two_notebooks_may_not_make_the_same_file(tmp_path, write_notebook):
    book.run(write_notebook(tmp_path / "01_x.ipynb", SAVE), tmp_path / "figures", tmp_path / "build")
    with pytest.raises(C3Error, match=r"a\.svg: notebooks 01_x and 02_y both make it"):
        book.run(write_notebook(tmp_path / "02_y.ipynb", SAVE), tmp_path / "figures", tmp_path / "build")


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ("out = '.'\nnode = 'a'", {"nodes": "b"}, "unknown parameter 'nodes' (did you mean 'node'?); known: node"),
        ("out = '.'\nrepeats = 9", {"repeats": "many"}, "parameter 'repeats' must be of type int, got 'many'"),
        ("out = '.'\nrepeats = 9", {"repeats": True}, "parameter 'repeats' must be of type int, got True"),
        ("out = '.'", {"out": "/"}, "unknown parameter 'out'"),
        ("node = 'a'", {}, "has no parameter 'out'"),
        ("out = ", {}, "the parameters cell is not valid Python"),
    ],
)
def test_bad_parameters_are_refused_before_anything_runs(tmp_path, write_notebook, parameters, given, message):
    notebook = write_notebook(tmp_path / "01_x.ipynb", parameters=parameters)
    with pytest.raises(C3Error) as caught:
        book.run(notebook, tmp_path / "figures", tmp_path / "build", given)
    assert message in str(caught.value)
    assert "01_x.ipynb" in str(caught.value)
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no such file"), ("{", "not a notebook"), ("[]", "not a notebook")]
)
def test_what_is_no_notebook_is_refused(tmp_path, text, message):
    path = tmp_path / "01_x.ipynb"
    if text is not None:
        path.write_text(text)
    with pytest.raises(C3Error, match=message):
        book.run(path, tmp_path / "figures", tmp_path / "build")


def test_a_damaged_record_is_one_sentence(tmp_path):
    record = tmp_path / "01_x.json"
    record.write_text("{")
    with pytest.raises(C3Error, match=r"01_x\.json: not the record"):
        book.published_by(record)


def test_command_line_refuses_what_is_no_pair(capsys):
    assert book.main(["x.ipynb", "-p", "node"]) == 1
    assert "expected NAME=VALUE" in capsys.readouterr().err


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans()))
def test_a_value_written_as_text_comes_back_in_the_type_of_the_default(value):
    back = convert(Path("x"), "p", str(value), {"p": type(value)(1)})
    assert back == value
    assert type(back) is type(value)


@given(st.text())
def test_a_parameter_whose_default_is_text_stays_text(value):
    assert convert(Path("x"), "p", value, {"p": "default"}) == value


def test_a_parameter_without_typed_default_takes_any_value():
    given = {"0": 0, "None": "None", "abc": "abc", "[1, 2]": [1, 2]}
    assert {text: convert(Path("x"), "p", text, {"p": None}) for text in given} == given
