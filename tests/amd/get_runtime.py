"""Get AMD's real user-space runtime, ROCr 6.1.2, where there is none: Debian 13's packages in a private folder.

apt gets state, cache and sources of its own, so the system's apt and packages stay as they are. The archive's address
is read from the machine's own apt configuration each time; Debian's installed keyring verifies what comes. The newer
libraries need their own libc, which comes along; :mod:`tests.amd.run_real` starts Python on it.

``python tests/amd/get_runtime.py`` fetches it (5 MB, a few seconds) and prints where it is and the versions.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HOME = REPOSITORY / "build" / "amd"  # ignored by git, removed by `make clean`
COMMAND = "python tests/amd/get_runtime.py"

SUITE, VERSION = "trixie", "6.1.2"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = (
    "libhsa-runtime64-1", "libhsa-runtime-dev", "libhsakmt1", "libdrm2", "libdrm-amdgpu1",
    "libc6", "libstdc++6", "libgcc-s1", "libelf1t64", "libnuma1", "zlib1g", "libzstd1",
)  # fmt: skip
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
LIMIT_S = 60  # of one apt command: a dead network must not hold up the tests
FAILURE_HOLDS_S = 120


class NotObtained(Exception):
    """The runtime or something needed to build its model cannot be had here; the message says why."""


def runtime_root() -> Path:
    """The folder that holds the runtime, fetched on first use. Raises :class:`NotObtained` with the reason."""
    root = HOME / f"rocr-{VERSION}"
    if not root.is_dir():
        HOME.mkdir(parents=True, exist_ok=True)
        with only_one("fetch"):
            if not root.is_dir():  # another process may have been quicker
                _fetch_unless_just_tried(root)
    return root


def _fetch_unless_just_tried(root: Path) -> None:
    """Where there is no network, each attempt takes long: processes of one test run share the first one's failure."""
    failed = HOME / "not-obtained.txt"
    if failed.exists() and time.time() - failed.stat().st_mtime < FAILURE_HOLDS_S:
        raise NotObtained(failed.read_text())
    try:
        _fetch(root)
    except NotObtained as error:
        failed.write_text(str(error))
        raise
    failed.unlink(missing_ok=True)


def library(root: Path) -> Path:
    """The real libhsa-runtime64 under ``root``."""
    return root / LIBRARIES / "libhsa-runtime64.so.1"


def header_folder(root: Path) -> Path:
    """The folder to hand to a compiler with -I for ``<hsa/hsa.h>``."""
    return root / "usr/include"


def versions(root: Path) -> dict[str, str]:
    """Version of each package in ``root``."""
    return dict(line.split() for line in (root / "packages.txt").read_text().splitlines())


@contextmanager
def only_one(what: str) -> Iterator[None]:
    """Among all processes that use this checkout, one at a time."""
    with open(HOME / f"{what}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(root: Path) -> None:
    for tool in ("apt-get", "apt-config", "dpkg-deb"):
        if not shutil.which(tool):
            raise NotObtained(f"{tool} not found: the runtime comes from Debian 13's packages")
    if os.uname().machine != "x86_64":
        raise NotObtained(f"this machine is {os.uname().machine}, the runtime is fetched for x86_64 only")
    if not KEYRING.exists():
        raise NotObtained(f"{KEYRING} not found: without Debian's keyring nothing that comes can be verified")
    address = _archive()
    # In the folder where it will stay, so that the last step is a rename.
    with tempfile.TemporaryDirectory(dir=HOME, prefix="fetch-") as name:
        work = Path(name)
        environment = private_apt(work, address)
        _run(["apt-get", "-qq", "update"], work, environment)
        _run(["apt-get", "-qq", "download", *PACKAGES], work, environment)
        found = {}
        for package in sorted(work.glob("*.deb")):
            name, version = _run(["dpkg-deb", "-W", str(package)], work, environment).split()
            found[name] = version
            _run(["dpkg-deb", "-x", str(package), str(work / "root")], work, environment)
        if not found.get("libhsa-runtime64-1", "").startswith(VERSION):
            raise NotObtained(f"Debian {SUITE} has libhsa-runtime64-1 {found.get('libhsa-runtime64-1')}, not {VERSION}")
        (work / "root/packages.txt").write_text("".join(f"{name} {version}\n" for name, version in found.items()))
        (work / "root").rename(root)


def _archive() -> str:
    """Address of the Debian archive that this machine's own apt uses."""
    lines = Path("/etc/os-release").read_text().splitlines()
    codename = next((line.split("=")[1].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")
    told = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"])
    for line in told.splitlines():
        address, release, component = line.rsplit(" ", 2)
        if release in (codename, "stable", "testing") and component == "main":
            return address
    raise NotObtained(f"this machine's apt has no Debian archive (no source for {codename or 'a Debian release'} main)")


def private_apt(work: Path, address: str) -> dict[str, str]:
    """An apt that lives in ``work``. Proxies and the like are the machine's; its sources, pins and hooks are not."""
    for folder in ("state/lists/partial", "cache/archives/partial", "sources", "none", "root"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources/debian.sources").write_text(
        f"Types: deb\nURIs: {address}\nSuites: {SUITE}\nComponents: main\nSigned-By: {KEYRING}\n"
    )
    how = [line for line in _run(["apt-config", "dump"]).splitlines() if line.startswith("Acquire::")]
    (work / "apt.conf").write_text(
        "\n".join(how)
        + f"""
Dir::State "{work}/state";
Dir::State::status "{work}/status";
Dir::Cache "{work}/cache";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{work}/none";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{work}/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{work}/none";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
"""
    )
    return {**os.environ, "APT_CONFIG": str(work / "apt.conf"), "LC_ALL": "C"}


def _run(command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise NotObtained(f"{' '.join(command[:3])} took more than {LIMIT_S} s") from None
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[0]
        raise NotObtained(f"{' '.join(command[:3])} failed: {why}")
    return done.stdout


if __name__ == "__main__":
    try:
        (HOME / "not-obtained.txt").unlink(missing_ok=True)
        where = runtime_root()
    except NotObtained as error:
        sys.exit(f"error: {error}")
    print(where)
    for package, version in versions(where).items():
        print(f"  {package} {version}")
