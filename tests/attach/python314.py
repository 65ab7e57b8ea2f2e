"""A Python 3.14 for tests: one that is installed, else Debian's own packages, unpacked beside the system.

Debian's packages are fetched with apt from unstable into a folder of their own (nothing is installed, the lists of the
system stay as they are), unpacked with dpkg-deb, and run with the dynamic loader and libraries that belong to them.
``python tests/attach/python314.py`` does that and prints the command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "python3.14-minimal", "libpython3.14-minimal", "libpython3.14-stdlib", "libc6", "libexpat1", "zlib1g", "libffi8",
    "libssl3t64", "liblzma5", "libbz2-1.0", "libuuid1", "libzstd1",
)  # fmt: skip
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian sid main\n"


class NotToBeHad(Exception):
    """No 3.14 here; the text says what was tried."""


def cache() -> Path:
    """Where it is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgtop" / "python3.14"


def command() -> list[str]:
    """Words that start a Python 3.14.

    Raises:
        NotToBeHad: none is installed and none can be fetched.
    """
    for name in ("python3.14", str(Path.home() / ".local/bin/python3.14")):
        found = shutil.which(name)
        if found and _works([found]):
            return [found]
    unpacked = _unpacked(cache())
    if unpacked is None:
        fetch(cache())
        unpacked = _unpacked(cache())
    if unpacked is None:
        raise NotToBeHad("Debian's python3.14 was unpacked, but does not run here")
    return unpacked


def _works(words: list[str]) -> bool:
    try:
        done = subprocess.run(
            [*words, "-c", "import sys, ctypes, hashlib, zlib; print(sys.version_info[:2])"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return done.stdout.strip() == "(3, 14)"


def _unpacked(root: Path) -> list[str] | None:
    for loader in root.glob("usr/lib*/ld-linux-*.so.*"):
        for python in root.glob("usr/bin/python3.14"):
            libraries = next(iter(root.glob("usr/lib/*-linux-gnu")), root)
            words = [str(loader), "--library-path", str(libraries), str(python)]
            if _works(words):
                return words
    for loader in root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*"):
        words = [str(loader), "--library-path", str(loader.parent), str(root / "usr/bin/python3.14")]
        if _works(words):
            return words
    return None


def fetch(root: Path) -> None:
    """Download and unpack.

    Raises:
        NotToBeHad: not Debian's tools, no network, or no such packages for this machine.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb") or not os.path.exists(KEYRING):
        raise NotToBeHad("no python3.14 on PATH, and no apt with Debian's keyring to fetch one")
    work = root.with_name(root.name + ".apt")
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text(SOURCE)
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    try:
        for words in ([*apt, "update"], [*apt, "download", *PACKAGES]):
            done = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=280, check=False)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise NotToBeHad(f"apt-get {words[-1]}: {last}")
        root.mkdir(parents=True, exist_ok=True)
        for package in work.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as e:
        raise NotToBeHad(f"fetching Debian's python3.14: {e}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    try:
        print(" ".join(command()))
    except NotToBeHad as e:
        sys.exit(f"no Python 3.14: {e}")
