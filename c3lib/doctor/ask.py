"""Probes in processes of their own: whatever one does, hang or crash, the page gets one sentence about it.

A probe is a generator function, named ``module:function``, that yields facts as it finds them and, between them, texts
that say what it does next. Facts are passed on at once, so what was found before a hang is not lost.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO

from c3lib.doctor.finding import Answer
from c3lib.files import ROOT

PYTHON = (sys.executable,)
"""How a Python is started that can load what this one can."""

PATIENCE_S = 2.0
"""How long a process may take to be gone, once it is told to."""


def ask(probe: str, *arguments: str, limit_s: float, environment: Mapping[str, str] | None = None) -> Answer:
    """What a probe finds within ``limit_s``; then it is stopped. Never raises, but for Ctrl-C."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    read, write = os.pipe()
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                [*PYTHON, "-m", "c3lib.doctor.child", str(write), probe, *arguments],
                pass_fds=(write,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries of vendors print there what nobody asked for
                stderr=errors,
                env={**os.environ, **(environment or {}), "PYTHONPATH": path},
                start_new_session=True,
            )
        except OSError as error:
            os.close(read)
            return Answer(failure=f"the probe could not be started: {error.strerror or error}")
        finally:
            os.close(write)
        try:
            told, in_time = _read(read, time.monotonic() + limit_s)
        finally:
            os.close(read)
            gone = _end(child)
        return _answer(told, in_time, gone, child.returncode, limit_s, _last_line(errors))


def _read(pipe: int, ends: float) -> tuple[bytes, bool]:
    """All that comes out of a pipe until it is closed or time is up, and whether it was closed."""
    told = b""
    while (left := ends - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        piece = os.read(pipe, 1 << 16)
        if not piece:
            return told, True
        told += piece
    return told, False


def _end(child: subprocess.Popen) -> bool:
    """Stop the child and all that it started; whether it is gone."""
    for last_word in (False, True):
        try:
            if last_word:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(PATIENCE_S if last_word else 0.2)
            return True
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue
    return child.poll() is not None


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _answer(told: bytes, in_time: bool, gone: bool, status: int | None, limit_s: float, last_line: str) -> Answer:
    facts, doing, failure, ended = [], "", "", False
    for line in told.split(b"\n")[:-1]:  # what follows the last newline was cut off
        try:
            said = json.loads(line)
        except ValueError:
            continue  # of whoever else writes to what it has inherited
        if "fact" in said:
            facts.append(said["fact"])
        doing = said.get("doing", doing)
        failure = said.get("failure", "")
        ended = "end" in said
    while_doing = f" while {doing}" if doing else ""
    if failure or ended:
        pass
    elif not in_time:
        failure = f"no answer within {limit_s:g} s{while_doing}, so the probe was stopped"
        failure += "" if gone else "; its process cannot be ended: it waits inside the kernel driver"
    elif status is not None and status < 0:
        failure = f"the probe was ended by {_signal_name(-status)}{while_doing}"
    else:
        failure = f"the probe ended{while_doing} with status {status}" + (f": {last_line}" if last_line else "")
    return Answer(tuple(facts), failure)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
