"""One run of a batch, in a process of its own: ``python -m c3lib.batch.job``, a job as one line of JSON on stdin.

The answer is one line of JSON on stdout. Stdin stays open as long as whoever asked lives: when it ends, so does the
run, with its kernel, and nothing is published.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from c3lib.book import run
from c3lib.errors import C3Error


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """What came of a job: published files, what the run depended on and its seconds, or the error."""
    folder = Path(job["folder"])
    try:
        done = run(job["notebook"], folder / "files", folder / "executed", job["parameters"])
    except C3Error as error:
        return {"error": str(error)}
    except KeyboardInterrupt:
        return {"error": "interrupted; nothing was published"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "published": [str(path) for path in done.published],
        "dependencies": [str(path) for path in done.dependencies],
        "time_s": done.time_s,
    }


def main() -> None:
    """Read the job, do it, answer."""
    out, sys.stdout = sys.stdout, sys.stderr  # whatever prints, the answer stands alone
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = json.loads(sys.stdin.buffer.readline())

    def follow() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    out.write(json.dumps(answer(job)) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
