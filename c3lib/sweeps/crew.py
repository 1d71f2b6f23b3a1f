"""Who computes the parts of a sweep: this process, processes of this machine, or a Dask cluster that is there already.

All take blocks and give back numbered parts, in any order and a few at a time, so that memory does not grow.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any

from c3lib.errors import C3Error, lacking
from c3lib.sweeps.grid import Block
from c3lib.sweeps.rows import part

Parts = Iterator[tuple[int, bytes]]

CONNECT_S = 5.0
"""A cluster that has not answered by then is said to be unreachable."""
NO_WORKERS_S = 60.0
"""A cluster may be without workers for so long, while it replaces them."""


def here(blocks: Iterable[Block], about: Mapping[str, str]) -> Parts:
    """In this process."""
    for block in blocks:
        yield block.number, part(block, about)


def processes(blocks: Iterable[Block], about: Mapping[str, str], workers: int) -> Parts:
    """In so many processes of this machine. Raises :class:`C3Error` when one of them dies."""
    # Spawned, not forked: a fork of a process with threads (a notebook's) can hang.
    context = multiprocessing.get_context("spawn")
    pool = futures.ProcessPoolExecutor(workers, mp_context=context, initializer=_worker)
    try:
        yield from _stream(
            (pool.submit(_numbered, block, about) for block in blocks),
            lambda waiting: futures.wait(waiting, return_when=futures.FIRST_COMPLETED).done,
            2 * workers,
        )
    except futures.process.BrokenProcessPool:
        raise C3Error(
            "a worker process died (out of memory?); what is finished is kept, so run it again, perhaps with fewer "
            "workers (a script of your own has to call sweep() under if __name__ == '__main__':)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _worker() -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends with that one, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _numbered(block: Block, about: Mapping[str, str]) -> tuple[int, bytes]:
    return block.number, part(block, about)


def _stream(submitted: Iterator[Any], wait: Callable[[set], Iterable[Any]], most: int) -> Parts:
    """Results as they come, with at most so many under way."""
    waiting: set[Any] = set()
    for future in submitted:
        waiting.add(future)
        if len(waiting) < most:
            continue
        done = set(wait(waiting))
        waiting -= done
        yield from (future.result() for future in done)
    while waiting:
        done = set(wait(waiting))
        waiting -= done
        yield from (future.result() for future in done)


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """A client of the Dask cluster at ``address``, which has workers.

    Raises:
        C3Error: Dask is not installed, or no cluster answers there within seconds.
    """
    try:
        import distributed
    except ModuleNotFoundError:
        raise lacking("--dask", "dask.distributed", "sweep") from None
    log = logging.getLogger("distributed")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what goes wrong is one sentence of ours
    try:
        # Asked before there is a client: one that never connected goes on trying, and complains when it is dropped.
        with futures.ThreadPoolExecutor(1) as other:  # with an event loop of its own, as a notebook's is running
            why = other.submit(asyncio.run, _why_not(address)).result()
        if why:
            raise C3Error(f"--dask {address}: no Dask cluster answers there ({why}); nothing was changed")
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        try:
            try:
                client.wait_for_workers(1, timeout=CONNECT_S)
            except TimeoutError:
                raise C3Error(f"--dask {address}: the cluster has no workers; nothing was changed") from None
            yield client
        finally:
            client.close(timeout=CONNECT_S)
    finally:
        log.setLevel(level)


async def _why_not(address: str) -> str:
    """Why no Dask scheduler can be talked to at an address; nothing if one can."""
    from distributed.comm import connect, parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    try:
        scheme, where = parse_address(address)
        get_backend(scheme)
        parse_host_port(where)
    except ValueError as error:
        return str(error)[:120]
    try:
        comm = await connect(address, timeout=CONNECT_S)
        await comm.close()
    except (OSError, TypeError, RuntimeError) as error:  # nobody there, or how TLS is set up
        return (str(error).strip().split("\n")[0] or type(error).__name__)[:120]
    except Exception:  # its bytes were taken for sizes or messages, as of 3 EiB
        return "what answers there is no Dask scheduler"
    return ""


def on_cluster(blocks: Iterable[Block], about: Mapping[str, str], client: Any, address: str) -> Parts:
    """On the workers of a Dask cluster, which runs again what a worker that died had.

    Raises:
        C3Error: the cluster went away, lost all its workers, or a part failed there.
    """
    import distributed

    alive = time.monotonic()

    def wait(waiting: set) -> Iterable[Any]:
        nonlocal alive
        while True:
            with suppress(TimeoutError), client.as_current():
                distributed.wait(list(waiting), timeout=2, return_when="FIRST_COMPLETED")
            done = [future for future in waiting if future.done()]
            if done:
                return done
            if client.status != "running":
                raise C3Error(_gone(address, "the connection was lost"))
            if client.scheduler_info(n_workers=-1)["workers"]:
                alive = time.monotonic()
            elif time.monotonic() - alive > NO_WORKERS_S:
                raise C3Error(_gone(address, "the cluster has no workers any more"))

    workers = client.nthreads()
    try:
        yield from _stream(
            (client.submit(_numbered, block, dict(about), pure=False) for block in blocks),
            wait,
            max(16, 2 * sum(workers.values())),  # more workers may still come
        )
    except C3Error as error:
        message = str(error)
        raise C3Error(message if message.startswith("--dask") else f"--dask {address}: {message}") from None
    except distributed.KilledWorker:
        raise C3Error(_gone(address, "several workers died, one after the other (out of memory?)")) from None
    except (futures.CancelledError, OSError, TimeoutError) as error:
        raise C3Error(_gone(address, f"the connection was lost ({type(error).__name__})")) from None
    except Exception as error:
        why = str(error).strip().split("\n")[0]
        raise C3Error(_gone(address, f"a worker failed: {type(error).__name__}: {why[:120]}")) from None


def _gone(address: str, why: str) -> str:
    return f"--dask {address}: {why}; what is finished is kept, so run it again"
