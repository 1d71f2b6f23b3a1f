"""Reading traces: cut into pieces anywhere the events are the same, and whatever a file holds it is a sentence."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trace_cases import ADD, GATHER, GEMM, HOST, PEER, SENT, copy, kernel, operator, write
from typer.testing import CliRunner

from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.trace import links, stream, values
from c3lib.trace import record as recording
from c3lib.trace.analysis import analyze
from c3lib.trace.record import record
from c3lib.trace.stream import Reader

EVENTS = [kernel(GEMM, 1, 2), {"ph": "M", "name": 'a "quoted" \\ name { [', "args": {}}, kernel(GATHER, 3, 4.5, 13)]


def read(path, partial=False):
    reader = Reader(path, partial=partial)
    return list(reader), reader


def said(error, path):
    """An error is one sentence that names the file."""
    text = str(error)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert len(text) < 500
    return text


def fails(path, *parts, partial=False):
    """It is refused by one sentence that names the file and has all ``parts``."""
    with pytest.raises(C3Error) as caught:
        record(path, partial=partial)
    text = said(caught.value, path)
    for part in parts:
        assert part in text
    return text


@pytest.fixture
def file(tmp_path):
    def written(content, name="t.json"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def plain(events):
    """The events as a reader gives them: fractions as text."""
    return json.loads(json.dumps(events), parse_float=str)


# --- whole files ---


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_an_object_with_events_and_more_around_them(tmp_path, name):
    about = {"skipped": [[{"a": '"]}\\'}], "b", 1.5, None], "deviceProperties": [{"id": 0, "name": "GPU"}], "n": -1.5e3}
    found, reader = read(write(tmp_path / name, EVENTS, **about))
    assert found == plain(EVENTS)
    assert (reader.count, reader.complete, reader.about) == (3, True, {"deviceProperties": about["deviceProperties"]})


def test_a_bare_list(file):
    found, reader = read(file(json.dumps(EVENTS)))
    assert (found, reader.complete) == (plain(EVENTS), True)


def test_a_byte_order_mark_a_trailing_comma_control_characters_and_bytes_that_are_no_text(file):
    text = b'\xef\xbb\xbf \n[{"name": "a\tb\xff", "n": NaN},\n]\n'
    found, _ = read(file(text))
    assert found[0]["name"] == "a\tb\ufffd"


def test_gzip_in_several_members(file):
    text = json.dumps({"traceEvents": EVENTS}).encode()
    assert read(file(gzip.compress(text[:40]) + gzip.compress(text[40:])))[0] == plain(EVENTS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(max_size=4), json_values, max_size=4)


def equal(one, other):
    return json.dumps(one) == json.dumps(other)  # NaN is itself


@settings(max_examples=100, deadline=None)
@given(st.lists(objects, max_size=3), objects, objects, st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_pieces_of_any_size_give_the_same_events(tmp_path_factory, events, before, after, size, ascii_only, indent):
    reserved = {"traceEvents", *stream.ABOUT}
    before, after = ({k: v for k, v in some.items() if k not in reserved} for some in (before, after))
    after = {key: value for key, value in after.items() if key not in before}
    text = json.dumps({**before, "traceEvents": events, **after}, ensure_ascii=ascii_only, indent=indent)
    path = tmp_path_factory.mktemp("pieces") / "t.json"
    path.write_bytes(text.encode("utf-8", "replace"))
    expected = json.loads(path.read_bytes(), parse_float=str)["traceEvents"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "CHUNK_NBYTES", size)
        found, reader = read(path)
    assert equal(found, expected)
    assert reader.complete


# --- cut off ---


def test_every_cut_is_said_with_the_events_before_it_and_partial_has_exactly_those(file):
    text = json.dumps({"deviceProperties": [], "traceEvents": EVENTS, "traceName": "x"})
    ends = [text.index(json.dumps(event)) + len(json.dumps(event)) for event in EVENTS]
    for size in range(1, len(text)):
        path = file(text[:size])
        whole = sum(end <= size for end in ends)
        fails(path, f"cut off after {whole} events", "--partial")
        found, reader = read(path, partial=True)
        assert (len(found), reader.complete) == (whole, False)


def test_a_cut_gzip_file(file):
    text = json.dumps({"traceEvents": [kernel(ADD, i, i % 7) for i in range(2000)]}).encode()
    packed = gzip.compress(text)
    path = file(packed[: len(packed) // 2], "t.json.gz")
    fails(path, "cut off after", "its gzip data ends too early")
    assert 500 < len(read(path, partial=True)[0]) < 1500
    broken = bytearray(packed)
    broken[len(broken) // 2] ^= 0xFF
    path = file(bytes(broken), "t.json.gz")
    with pytest.raises(C3Error, match=r"gzip data is damaged|no JSON|cut off"):
        record(path)
    broken = packed[:-8] + bytes(8)  # a wrong checksum
    fails(file(broken, "t.json.gz"), "gzip data is damaged")


def test_a_list_without_its_end_is_cut_off(file):
    fails(file(json.dumps(EVENTS)[:-1]), "cut off after 3 events")


def test_a_part_is_never_presented_as_the_whole(file):
    path = file(json.dumps(EVENTS)[:-1])
    words = ["trace", "analyze", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 2
    result = CliRunner().invoke(app, [*words, "--partial"])
    assert "PARTIAL: " in result.stdout
    assert (
        json.loads(CliRunner().invoke(app, [*words, "--partial", "--json"]).stdout)["devices"][0]["complete"] is False
    )


# --- no trace ---


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"\x80\x04\x95pickle", "no Chrome trace"),
        (b"SQLite format 3\0", "no Chrome trace"),
        (b"\0" * 100, "no Chrome trace"),
        (b'"text"', "no Chrome trace"),
        (b"{}", "no list 'traceEvents'"),
        (b'{"a": 1}', "no list 'traceEvents'"),
        (b'{"traceEvents": 3}', "expected [ behind the key 'traceEvents': a list of events"),
        (b'{"traceEvents": null}', "expected [ behind the key 'traceEvents'"),
        (b'{"traceEvents": {"a": 1}}', "expected [ behind the key 'traceEvents'"),
        (b'{"traceEvents": [3]}', "an event must be an object"),
        (b'{"traceEvents": [{"a": 1}, [2]]}', "after 1 events: an event must be an object"),
        (b'{"traceEvents": [{"a": 1} {"a": 1}]}', "expected , or ]"),
        (b'{"traceEvents": [{"a": \'x\', "bcdefghijklmnopqrstuvwxyz": 1}]}', "no JSON"),
        (b'{"traceEvents": [{"a": "\\x", "bcdefghijklmnopqrstuvwxyz": 1}]}', "no JSON"),
        (b'{"traceEvents": []} {"traceEvents": []}', "text follows"),
        (b'{"traceEvents": [] "a": 1}', "expected , or } behind the value of 'traceEvents'"),
        (b"{traceEvents: []}", "expected a key in quotes"),
        (b'{"a" 1}', "expected : behind the key 'a'"),
        (b'{"a\x1b[2J%s" 1}' % (b"x" * 1000), "expected : behind the key 'a?[2Jxxx"),
        (b"[]", "no GPU kernel among 0 events: profile with ProfilerActivity.CUDA"),
        (b'[{"ph": "X", "cat": "cpu_op"}]', "no GPU kernel among 1 events"),
        (b'[{"ph": "B", "cat": "kernel"}, {"cat": ["kernel"]}, {"cat": 3}]', "no GPU kernel among 3 events"),
    ],
)
def test_what_is_no_trace_is_a_sentence(file, content, part):
    fails(file(content), part)


def test_what_is_no_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody writes to it: opening it would wait for ever
    (tmp_path / "link").symlink_to(pipe)
    for path in (tmp_path, pipe, tmp_path / "link", Path("/dev/zero"), Path("/dev/null")):
        fails(path, "must be a file, not a folder, a pipe or a device")
    (tmp_path / "loop").symlink_to("loop")
    fails(tmp_path / "none.json", "cannot be read: No such file")
    fails(tmp_path / "loop", "cannot be read: ")
    fails(tmp_path / ("x" * 300), "cannot be read: File name too long")
    for name in ("pipe", "none.json"):
        result = CliRunner().invoke(app, ["trace", "analyze", str(tmp_path / name)])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path, monkeypatch, name):
    """As when the profiler is still writing: what is there when the end is reached counts, whole or cut off."""
    whole = write(tmp_path / name, [kernel(GEMM, i, 1) for i in range(300)]).read_bytes()
    monkeypatch.setattr(stream, "CHUNK_NBYTES", 100)
    for upto in (len(whole), len(whole) - 20):
        path = tmp_path / f"growing.{name}"
        path.write_bytes(whole[:1000])

        def grow(nbytes, path=path, upto=upto):
            size = path.stat().st_size
            with path.open("ab") as writer:
                writer.write(whole[size : min(upto, size + 150)])

        if upto == len(whole):
            assert record(path, grow).start_ns.size == 300
        else:
            with pytest.raises(C3Error, match=r"cut off after \d+ events"):
                record(path, grow)


def test_a_file_that_is_cut_while_it_is_read_is_cut_off(tmp_path, monkeypatch):
    path = write(tmp_path / "t.json", [kernel(GEMM, i, 1) for i in range(300)])
    monkeypatch.setattr(stream, "CHUNK_NBYTES", 1000)
    with pytest.raises(C3Error, match=r"cut off after \d+ events"):
        record(path, lambda nbytes: os.truncate(path, 5000))


# --- hostile values ---


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("NaN", "must be a number of microseconds within 3e+15 of 0, not nan"),
        ("Infinity", "not inf"),
        ("-Infinity", "not -inf"),
        ("1e999", "not 1e999"),
        ("1e-999999999999999999999", "must be a number"),
        ("9999999999999999999999", "must be a number"),
        ("true", "not True"),
        ('"soon"', "not soon"),
        ('"\\u001b[2J"', "not ?[2J"),
        ('"\u0663"', "not \u0663"),
        ('"1_000"', "not 1_000"),
        ('" 5"', "not  5"),
        ('"5e"', "not 5e"),
        ('"-"', "not -"),
        ('""', "not "),
        ("1e99999999999999999", "not 1e99999999999999999"),
        ("3000000000000001", "not 3000000000000001"),
        ("[1]", "not list"),
        ("{}", "not dict"),
        ("null", "is missing"),
        ("4" + "0" * 4000, "must be a number"),
        ("4" + "0" * 5000, "a number has thousands of digits"),
        ("0." + "1" * 100_000, None),
    ],
)
def test_times_that_are_none_are_a_sentence(file, key, text, part):
    event = json.dumps(kernel(GEMM, 4711, 4712)).replace("4711" if key == "ts" else "4712", text)
    path = file(f"[{json.dumps(kernel(ADD, 0, 1))}, {event}]")
    if part is None:
        assert record(path).events == 2
    else:
        text = fails(path, part)
        assert f"event 2 ('{GEMM}'): '{key}'" in text or "thousands of digits" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-1.5", -1500), ("3e15", 3 * 10**18), ("-3000000000000000.000", -3 * 10**18), ("1.2e1", 12000), ("0e9999", 0),
        ("1790857026000000.12345", 1_790_857_026_000_000_123), ("0." + "0" * 500 + "15E+501", 1500),
        ("1e-99999999", 0), ("0e99999999", 0),
    ],
)  # fmt: skip
def test_times_are_whole_nanoseconds(text, expected):
    assert values.time_ns({"ts": text}, "ts") == expected


def test_missing_and_negative_durations(file):
    event = kernel(GEMM, 1, 2)
    del event["dur"]
    fails(file(json.dumps([event])), f"event 1 ('{GEMM}'): 'dur' is missing")
    fails(file(json.dumps([kernel(GEMM, 1, -2.5)])), "'dur' must be at least 0, not -2.5")
    assert record(file(json.dumps([kernel(GEMM, -1.5, 2)]))).start_ns.tolist() == [-1500]


@pytest.mark.parametrize("bomb", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("place", ["event", "about", "skipped"])
def test_depth_bombs(file, bomb, place):
    deep = bomb * 200_000
    text = {
        "event": f'{{"traceEvents": [{{"ph": "X", "args": {deep}',
        "about": f'{{"deviceProperties": {deep}',
        "skipped": f'{{"other": {deep}',
    }[place]
    fails(file(text), "cut off after 0 events" if place == "skipped" else "nested too deep")


def test_a_deep_value_that_nobody_needs_is_stepped_over(file):
    deep = "[" * 200_000 + "]" * 200_000
    assert len(read(file(f'{{"other": {deep}, "traceEvents": []}}'))[0]) == 0


@pytest.mark.parametrize("value", ['"' + "x" * (5 * 2**20) + '"', "[" + f'"{"x" * 99}",' * (5 * 2**20 // 100) + "1]"])
def test_an_event_of_megabytes_is_refused_and_a_value_beside_the_events_is_not(file, value):
    fails(file(f'[{{"name": {value}}}]'), "a value of more than 4 MiB")
    fails(file(f'[{{"name": {value}'), "a value of more than 4 MiB")
    fails(file(f'{{"other": {value}, "traceEvents": []}}'), "no GPU kernel")


def test_names_of_any_length_stay_apart_and_take_no_room(file):
    name = "gemm" + "x" * 100_000
    found = record(file(json.dumps([kernel(name + "a", 0, 1), kernel(name + "b", 0, 1), kernel(name + "a", 5, 1)])))
    assert found.kernel.tolist() == [0, 1, 0]
    assert max(len(one.name) for one in found.kernels) < values.LONGEST_NAME + 20


def test_more_than_fits_is_a_sentence(file, monkeypatch):
    path = file(json.dumps([kernel(f"gemm{i}", i, 1, stream=i, device=i) for i in range(30)]))
    for module, name, most, part in [
        (recording, "MOST_ACTIVITIES", 20, "more than 20 GPU activities"),
        (
            recording,
            "MOST_DEVICES",
            29,
            "event 30 ('gemm29'): more than 29 GPUs: analyse the traces of the ranks one by",
        ),
        (recording, "MOST_STREAMS", 29, "more than 29 different streams"),
        (recording, "MOST_CHARACTERS", 100, "the names of different kernels take more than"),
        (links, "MOST_DIFFERENT", 10, "more than 10 different"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, most)
            fails(path, part)
    assert len(record(path).start_ns) == 30
    launch = {"cat": "cuda_runtime", "name": "launch", "args": {"correlation": 1, "External id": 2}}
    monkeypatch.setattr(links, "MOST_LAUNCHES", 20)
    fails(file(json.dumps([launch] * 30)), "event 21 ('launch'): more than 20 launches")


ARGUMENTS = (
    "device", "stream", "grid", "block", "bytes", "inDevice", "dtype", "correlation", "External id", "Group size",
    "grid dim", "block dim", "fromDevice", "Input Dims", "Input type", "Collective name", "In msg nelems",
    "Out msg nelems",
)  # fmt: skip
# Values of every type and at every limit; drawn from a list, as most of the time would go into inventing them.
HOSTILE = (
    None, True, False, 0, 1, -1, -2, 5, 2**31, 2**53, 2**53 + 1, 2**62 - 1, 2**62, 2**63, 2**64, 10**20, -(10**20),
    0.5, -1e-9, 1e300, float("nan"), float("inf"), values.LATEST_NS // 1000, -values.LATEST_NS // 1000,
    "", "5", "\u0663", "\ud800", "\x1b[2J", "x" * 3000, "allgather", "X", "kernel", "gpu_memcpy", "cpu_op",
    "cuda_runtime", "aten::mm", "aten::bmm", "record_param_comms", "Half", GEMM, HOST,
    [], {}, [[]], [{}], {"a": [1]}, [1], [1, 2, 3], [1, 2, 3, 4], [-1], [2**64], ["x"], [None],
    [[2, 3], [3, 4]], [[2, 3], [2, 3]], [[0, 3], [3, 0]], [[2**52, 2**52, 4], [4, 1]], [[2, 2, 3], [2, 3, 4]],
    [[-2, 2**64], [2**64, 1]], ["Half", 3],
)  # fmt: skip
BASES = (
    kernel(GEMM, 1, 2, **{"External id": 5}), kernel(GATHER, 1, 2, 13, **SENT), copy(HOST, 2, 3), copy(PEER, 0, 2),
    operator("aten::mm", 5, [[2, 3], [3, 4]], ["Half"] * 2), operator("record_param_comms", 5, **SENT),
    {"cat": "cuda_runtime", "name": "launch", "ts": 1, "dur": 1, "args": {"External id": 5, "grid dim": [1, 1, 1]}},
)  # fmt: skip
hostile = st.sampled_from(HOSTILE)
told = st.dictionaries(st.sampled_from(ARGUMENTS), hostile, max_size=3)
fields = st.dictionaries(st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]), hostile, max_size=2)
wild = st.builds(
    lambda base, told, fields: {**base, "args": {**base.get("args", {}), **told}, **fields},
    st.sampled_from([*BASES, *BASES, {}]),
    told,
    fields,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(wild, min_size=1, max_size=6), st.dictionaries(st.sampled_from(stream.ABOUT), hostile))
@example([kernel(GEMM, 2, 3, stream=[[]])], {})
def test_any_json_is_analysed_or_refused_by_a_sentence(tmp_path_factory, events, about):
    path = tmp_path_factory.mktemp("wild") / "t.json"
    path.write_text(json.dumps({**about, "traceEvents": events}))
    try:
        found = analyze([path])
    except C3Error as error:
        said(error, path)
        return
    for device in found:
        hidden = device.communication
        assert 0 <= hidden.exposed_s <= hidden.time_s <= device.busy_s <= device.span_s + 1e-9
        assert device.gemm_s <= device.compute_s <= device.busy_s


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 60))
def test_any_bytes_anywhere_are_read_or_refused_by_a_sentence(tmp_path_factory, noise, at, cut):
    text = json.dumps({"traceEvents": EVENTS, "x": {"y": "z"}}).encode()
    path = tmp_path_factory.mktemp("noise") / "t.json"
    path.write_bytes(text[:at] + noise + text[at + cut :])
    for partial in (False, True):
        try:
            record(path, partial=partial)
        except C3Error as error:
            said(error, path)


# --- memory, and the shell ---


def test_memory_stays_bounded(tmp_path):
    """What would be 100 MB of text is read by a process that may take 64 MB of addresses beyond its libraries."""
    names = ",".join(
        f'{{"ph":"X","cat":"gpu_memcpy","name":"{f"{i:05d}" * 300}","ts":1,"dur":1}}' for i in range(6_000)
    )
    bombs = {  # gzip members that are compressed once and unpacked a hundred times
        "a value of more than 4 MiB": ('[{"name": "', "x" * 2**20, 100),
        "cut off after 0 events": ('{"traceEvents": [', " " * 2**20, 100),
        "the names of different kernels take more than 8 MiB": ("[", names, 1),
    }
    paths = [tmp_path / f"{i}.json.gz" for i in range(len(bombs))]
    for path, (beginning, member, times) in zip(paths, bombs.values(), strict=True):
        path.write_bytes(gzip.compress(beginning.encode(), 1) + gzip.compress(member.encode(), 1) * times)
    code = (
        "import resource, sys; from c3lib.trace.record import record; from pathlib import Path\n"
        "import numpy\n"
        "room = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 64 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (room, room))\n"
        "from c3lib.errors import C3Error\n"
        "for path in sys.argv[1:]:\n"
        "    try: record(Path(path))\n"
        "    except C3Error as error: print(error)"
    )
    command = [sys.executable, "-c", code, *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == len(bombs), done.stderr
    for path, part, line in zip(paths, bombs, lines, strict=True):
        assert line.startswith(f"{path}: ")
        assert part in line


def test_ctrl_c_in_the_middle_is_one_line(tmp_path):
    """In a value that takes minutes to read: a terabyte of zeros, which take no room on the disk."""
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [], "other": "')
    os.truncate(path, 2**40)
    command = [sys.executable, "-m", "c3lib", "trace", "analyze", str(path)]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    opened, until = Path(f"/proc/{running.pid}/fd"), time.monotonic() + 60
    while not any(os.path.realpath(one) == str(path) for one in opened.iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (out, err, running.returncode) == ("", "c3: interrupted\n", 130)


def test_the_bar_counts_bytes_of_the_file(tmp_path):
    path = write(tmp_path / "t.json.gz", EVENTS * 5000)
    steps = []
    record(path, steps.append)
    assert sum(steps) == path.stat().st_size
