"""JupyterLab with a copy of the notebooks, and a browser on it. Screenshots are kept in build/lab to be looked at."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c3lib.files import ROOT

SHOTS = ROOT / "build" / "lab"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_S = 60


def pytest_collection_modifyitems(items):
    why = _missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("lab")
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


def _missing() -> str:
    """Why no page can be opened here; empty if one can."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium on this machine (Debian, Ubuntu: apt install chromium)"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return ""


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Address of a JupyterLab whose ``notebooks/`` may be written to: ``lab(theme)`` starts one."""
    started = []

    def start(theme: str = "JupyterLab Light") -> str:
        root = tmp_path_factory.mktemp("lab")
        shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".*"))
        for name, values in {
            "apputils-extension/themes": {"theme": theme},
            "apputils-extension/notification": {"fetchNews": "false"},
            "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is on the page, seen or not
        }.items():
            file = root / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = root / "lab.log"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
        command += ["--IdentityProvider.token=secret", f"--ServerApp.root_dir={root}"]
        environment = os.environ | {
            "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
            "JUPYTER_CONFIG_DIR": str(root / "config"),
            "PYTHONPATH": str(ROOT),
        }
        with log.open("w") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=root)
        started.append(server)
        limit = time.monotonic() + START_S
        while not re.search(r"http://127\.0\.0\.1", log.read_text()):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < limit, f"JupyterLab did not start within {START_S} s: {log.read_text()}"
            time.sleep(0.1)
        return f"http://127.0.0.1:{port}/lab/tree/notebooks/{{}}.ipynb?token=secret&reset"

    yield start
    for server in started:
        server.terminate()
    for server in started:
        server.wait(20)


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)))
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser):
    """``opened(address, name)``: a page with that notebook after *Run All Cells*, when no cell waits any more."""
    pages = []

    def run_all(address: str, name: str, height: int = 1500):
        page = browser.new_page(viewport={"width": 1400, "height": height})
        page.set_default_timeout(30_000)
        pages.append(page)
        page.goto(address.format(name), wait_until="domcontentloaded")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        page.get_by_text("| Idle").first.wait_for()  # before that it would ask which kernel to run
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name=re.compile("Run All Cells")).first.click()
        # A cell that ran has a number, one that waits a star, one not yet asked for nothing; one that failed ends all.
        page.wait_for_function(
            """() => {
                const cells = Array.from(document.querySelectorAll('.jp-CodeCell .jp-InputPrompt'));
                const failed = document.querySelector("[data-mime-type='application/vnd.jupyter.error']");
                return failed || (cells.length && cells.every(one => /[0-9]/.test(one.textContent)));
            }""",
            timeout=90_000,
        )
        return page

    yield run_all
    for page in pages:
        page.close()


@pytest.fixture(scope="session")
def shots():
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS
