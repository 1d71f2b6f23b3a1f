"""Everything in README.md is run: its commands, its Python, its links; its table of claims is the generated one."""

import re
import subprocess

import pytest

from c3lib.claims import claims_table
from c3lib.errors import C3Error
from c3lib.figures.beside import beside
from c3lib.files import ROOT
from c3lib.measured import read_measured
from c3lib.readme import BEGIN, END, LADDER_BEGIN, MEASURED, ladder_markdown, markdown, with_claims, with_ladder

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = [
    line.split("#")[0].strip() for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.splitlines()
]
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("command", [line for line in SHELL if line.startswith("c3 ")])
def test_every_c3_command_runs(command, tmp_path):
    from typer.testing import CliRunner

    from c3lib.cli import app

    words = [word.replace("build/", f"{tmp_path}/") for word in command.split()[1:]]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 2


@pytest.mark.parametrize("command", [line for line in SHELL if line.startswith("make ")])
def test_every_make_command_has_its_target(command):
    result = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_json_is_had_by_the_commands_that_are_said_to_have_it():
    import typer

    from c3lib.cli import app

    def commands(command, words=()):
        yield " ".join(words), {option for parameter in command.params for option in parameter.opts}
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, (*words, name))

    all_of_them = dict(commands(typer.main.get_command(app), ("c3",)))
    groups = {words.rsplit(" ", 1)[0] for words in all_of_them if " " in words}
    without = {words for words, options in all_of_them.items() if "--json" not in options} - groups
    assert re.findall(r"`--json`, but for\s+`(.+?)`", TEXT) == sorted(without)


def test_no_other_kind_of_command():
    assert {line.split()[0] for line in SHELL if line} <= {"make", "c3"}


@pytest.mark.parametrize("code", PYTHON)
def test_python_runs_as_printed(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert "conccl" in capsys.readouterr().out


@pytest.mark.parametrize("target", [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link])
def test_every_link_leads_somewhere(target):
    assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", re.findall(r"^\| `(\d\d_\w+)` \|", TEXT, re.M))
def test_every_notebook_named_exists(name):
    assert (ROOT / "notebooks" / f"{name}.ipynb").exists()


def test_notebook_table_is_complete():
    assert set(re.findall(r"`(\d\d_\w+)`", TEXT)) == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_claims_table_is_the_generated_one():
    assert markdown(claims_table()) in TEXT, "README.md is out of date: python -m c3lib.readme"


def test_table_follows_the_claims():
    table = claims_table()
    table.loc[table.index[0], "modelled"] = 12345.0
    table.loc[table.index[0], "status"] = "predicted"
    text = with_claims(TEXT, table)
    assert "1.23e+04" in text
    assert text.startswith(TEXT.split(BEGIN)[0])
    assert text.endswith(TEXT.split(END)[1])


def test_missing_markers_are_named():
    with pytest.raises(C3Error, match="claims end"):
        with_claims(TEXT.replace(END, ""), claims_table())


# --- the ladder ---


def test_the_ladder_is_the_generated_one():
    assert with_ladder(TEXT) == TEXT


def test_the_ladder_says_of_each_number_what_it_is():
    tables = [beside(read_measured(*what)[0]) for what in MEASURED]
    text = ladder_markdown(*tables)
    assert text.splitlines()[0].count("reported") == text.splitlines()[0].count("modelled") == 1
    assert text.count("(calibrated)") == tables[0]["calibrated on it"].sum() == 2
    for table, (node, _) in zip(tables, MEASURED, strict=True):
        assert f"measured, {node}" in text.splitlines()[0]
        for row in table.to_dict("records"):
            assert row["low"] <= row[f"measured, {node}"] <= row["high"]
            assert f"{row[f'measured, {node}']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" in text


def test_a_readme_without_the_markers_of_the_ladder_is_refused():
    with pytest.raises(C3Error, match="ladder"):
        with_ladder(TEXT.replace(LADDER_BEGIN, ""))
