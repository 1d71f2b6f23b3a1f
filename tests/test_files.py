"""Files are written whole or not at all, whatever goes wrong in the middle."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib import files
from c3lib.errors import C3Error, large, shorten


def fail_with(error):
    def failing(*_, **__):
        raise error

    return failing


def test_written_and_read_back(tmp_path):
    path = files.write_text(tmp_path / "new" / "folder" / "a.txt", "ä\n")
    assert files.read_text(path) == "ä\n"
    assert path.read_bytes() == "ä\n".encode()


@given(st.binary(max_size=100))
def test_any_bytes(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "a"
    assert files.write_bytes(path, content).read_bytes() == content


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), C3Error),
        (OSError(errno.EIO, "Input/output error"), C3Error),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["full disk", "broken disk", "Ctrl-C"],
)
def test_what_fails_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step, error, shown):
    path = tmp_path / "a.txt"
    path.write_text("old")
    owner = os if step == "fsync" else Path
    monkeypatch.setattr(owner, step, fail_with(error))
    with pytest.raises(shown) as caught:
        files.write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
    if shown is C3Error:
        assert str(caught.value) == f"{path}: cannot be written: {error.strerror}; nothing was changed"


def test_a_really_full_device():
    """Where the system has one, the device that is always full fails a write as a full disk does."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="space") as caught:
        full.write(b"x")
    assert caught.value.errno == errno.ENOSPC  # the error that the test above simulates


@pytest.mark.parametrize("failing", [0, 1])
def test_files_that_belong_together_change_together(tmp_path, monkeypatch, failing):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("old")
    calls, real = [], os.fsync

    def fsync(number):
        calls.append(number)
        if len(calls) == failing + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(C3Error, match=f"{paths[failing].name}: cannot be written: No space left"):
        files.write_together(dict.fromkeys(paths, b"new"))
    assert [path.read_text() for path in paths] == ["old", "old"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(C3Error, match="is a folder"):
        files.write_together({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert os.listdir(tmp_path) == ["b"]


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(C3Error, match="cannot be written"):
        files.write_text(tmp_path / "a" / "b", "new")
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(C3Error, match="Permission denied"):
        files.write_text(tmp_path / "a", "new")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        path = files.write_text(tmp_path / "a", "x")
        assert os.umask(mask) == mask  # looking at it did not change it
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(("content", "message"), [(None, "no such file"), (b"ab\xff", r"not UTF-8 text \(byte 2\)")])
def test_what_cannot_be_read_is_named(tmp_path, content, message):
    path = tmp_path / "a.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(C3Error, match=rf"a\.csv: {message}"):
        files.read_text(path)


def test_a_folder_cannot_be_read(tmp_path):
    with pytest.raises(C3Error, match="cannot be read: Is a directory"):
        files.read_text(tmp_path)


def test_what_was_read_or_listed_is_remembered_and_what_failed_is_not(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).write_text("x")
    files.read_text(tmp_path / "a.csv")
    with pytest.raises(C3Error):
        files.read_text(tmp_path / "d.csv")
    assert files.names_in(tmp_path, ".csv") == ["a", "b"]
    mine = [path for path in files.files_read() if path.is_relative_to(tmp_path)]
    assert mine == [tmp_path, tmp_path / "a.csv"]


def test_no_more_is_read_than_asked_for(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"x = 1\r\n")
    assert files.read_text(path, most_nbytes=7) == "x = 1\n"
    with pytest.raises(C3Error, match=r"a\.toml: is larger than 6 bytes"):
        files.read_text(path, most_nbytes=6)
    with pytest.raises(C3Error, match="/dev/zero: is larger than 1000 bytes"):
        files.read_text("/dev/zero", most_nbytes=1000)


def test_a_folder_is_held_by_one_process_and_let_go_when_it_ends(tmp_path):
    with files.held(tmp_path / "new", "sweep"):
        code = f"from c3lib.files import held\nwith held({str(tmp_path / 'new')!r}, 'sweep'): print('mine')"
        run = lambda: subprocess.run([sys.executable, "-c", code], cwd=files.ROOT, capture_output=True, text=True)  # noqa: E731
        assert "another sweep is writing here" in run().stderr
    assert run().stdout == "mine\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(C3Error, match="file: must be a folder"), files.held(tmp_path / "file", "sweep"):
        pass


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "device", "link"])
def test_only_an_ordinary_file_of_some_size_passes(tmp_path, kind):
    path = tmp_path / "a"
    match kind:
        case "file":
            path.write_bytes(b"abc")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "link":
            path.symlink_to(__file__)
    if kind in ("file", "link"):
        assert files.ordinary(path, 10**6) == len(path.read_bytes())
        with pytest.raises(C3Error, match="a: is larger than 2 bytes"):
            files.ordinary(path, 2)
    else:
        with pytest.raises(C3Error, match=f"{path}: must be an ordinary file$"):
            files.ordinary(path, 10**6)


@pytest.mark.parametrize(("name", "message"), [("no", "no such file"), ("a/" * 2500, "name too long"), ("\0", "path")])
def test_a_path_of_no_file_is_told_in_few_letters(name, message):
    with pytest.raises(C3Error, match=f"(?i){message}") as caught:
        files.ordinary(name, 1)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (pipe, link, Path("/dev/null")):
        with pytest.raises(C3Error, match=f"{path}: cannot be written: it is no ordinary file; nothing was changed"):
            files.write_together({tmp_path / "a": b"1", path: b"2"})
    with pytest.raises(C3Error, match="loop: cannot be written"):
        files.write_text(loop, "x")
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()
    assert sorted(os.listdir(tmp_path)) == ["link", "loop", "pipe"]


def test_standard_output_that_is_a_pipe_is_not_written_to():
    code = "from c3lib.files import write_text; write_text('/dev/stdout', 'x')"
    done = subprocess.run([sys.executable, "-c", code], cwd=files.ROOT, capture_output=True, text=True)
    assert "/dev/stdout: cannot be written: it is no ordinary file" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("there", [True, False])
def test_behind_a_link_the_file_is_written(tmp_path, there):
    real, link = tmp_path / "folder" / "real", tmp_path / "link"
    link.symlink_to("folder/real")
    if there:
        files.write_text(real, "old")
    assert files.write_text(link, "new") == link
    assert link.is_symlink()
    assert not real.is_symlink()
    assert real.read_text() == "new"
    assert os.listdir(real.parent) == ["real"]


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(C3Error, match="lock: must be an ordinary file"), files.held(tmp_path, "sweep"):
        pass


ANY_VALUE = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.sampled_from(["x" * 10**5, "\x1b[2J", "\ud800"]),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(ANY_VALUE, st.integers(4, 300), st.booleans())
def test_a_value_is_shown_on_a_line_in_few_letters(value, most, bare):
    shown = shorten(value, most, bare)
    assert len(shown) <= max(most, len("a number of more than 60 digits"))
    assert shown.isprintable()
    shown.encode()


def test_short_values_and_counts_are_shown_as_they_are():
    assert shorten(-(10**5000)) == "a number of more than 60 digits"
    assert [shorten("a"), shorten("a", bare=True), shorten(2.5), shorten("x" * 9, most=8)] == [
        "'a'",
        "a",
        "2.5",
        "'xxxx...",
    ]
    assert [large(0), large(6000), large(10**24), large(4**40 * 10**3)] == [
        "0",
        "6,000",
        "more than 10^24",
        "more than 10^27",
    ]
