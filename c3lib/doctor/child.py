"""The process that a probe runs in: ``python -m c3lib.doctor.child FD module:function ARGUMENTS...``.

Writes one JSON line to the file descriptor for everything that the probe says, and last whether it got to its end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from c3lib.errors import C3Error


def said(probe: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """What a probe yields, then ``end`` or, whatever it raises, one sentence in ``failure``."""
    try:
        for word in probe:
            yield {"doing" if isinstance(word, str) else "fact": word}
        yield {"end": True}
    except C3Error as error:
        yield {"failure": str(error)}
    except ModuleNotFoundError as error:
        yield {"failure": f"the package {error.name} is not installed"}
    except BaseException as error:
        first = next(iter(str(error).strip().splitlines()), "")
        yield {"failure": f"{type(error).__name__}: {first}" if first else type(error).__name__}


def main(pipe: str, probe: str, *arguments: str) -> None:
    """Run the probe and leave without tidying up: a driver whose engine hangs would keep the process for ever."""
    with os.fdopen(int(pipe), "w", encoding="utf-8") as out:
        module, _, name = probe.partition(":")
        for word in said(getattr(import_module(module), name)(*arguments)):
            out.write(json.dumps(word) + "\n")
            out.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
