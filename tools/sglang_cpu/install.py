"""Installs a real SGLang for the CPU into a venv of its own, once, with progress shown.

Two ways, by what pip has for torch on this machine:

- a CPU build of torch: everything from the pins with ``--no-deps``. SGLang declares several GB of CUDA packages that
  its CPU path never imports. PyPI's torchvision is a CUDA build whose C++ operators are missing beside that torch, so
  the two decorators that look them up at import are taken out; nothing here uses the operators.
- only a CUDA build of torch (PyPI's on Linux x86-64): torch and torchvision of one release with their dependencies,
  then the rest of the pins with ``--no-deps``. It runs on the CPU all the same.

The stamp is written last, so a half-finished install is done again. SGLang itself is unmodified.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.sglang_cpu.places import cache

PINS = Path(__file__).parent / "pins"
STAMP = "sgtop-install.json"
VERSIONS = ("0.5.20", "0.5.23", "0.5.16", "0.5.12.post1")
"""SGLang versions that have pins, the one that most tests use first."""
FOR_CUDA_TORCH = "0.5.23"
"""The SGLang release that the CUDA build's torch release was made for."""
PYTHON = (3, 11)

Say = Callable[[str], None]


class InstallError(RuntimeError):
    """In words: what is missing and the command that brings it."""


@dataclass(frozen=True)
class Install:
    """An installed SGLang."""

    version: str
    flavour: str
    """``cpu`` or ``cuda``: the build of torch beside it. Both run on the CPU."""
    venv: Path

    @property
    def python(self) -> Path:
        """The venv's interpreter."""
        return self.venv / "bin" / "python"

    @property
    def site(self) -> Path:
        """The venv's site-packages."""
        return self.venv / "lib" / f"python{PYTHON[0]}.{PYTHON[1]}" / "site-packages"


_shown = ("", 0.0)


def progress(line: str) -> None:
    """Show ``line`` on stderr: in place on a terminal; elsewhere a line each, but one that only counts every 10 s."""
    global _shown
    what, now = re.split("[,(]", line)[0], time.monotonic()
    if sys.stderr.isatty():
        print(line, end="\x1b[K\r", file=sys.stderr, flush=True)
    elif line and (what != _shown[0] or now > _shown[1] + 10):
        print(line, file=sys.stderr, flush=True)
        _shown = (what, now)


def ensure(version: str | None = None, *, say: Say = progress) -> Install:
    """The installed SGLang ``version``; installs it when it is not there or its pins changed.

    ``None`` takes whatever is quickest here: 0.5.20 with a CPU build of torch, 0.5.23 with a CUDA build.

    Raises:
        InstallError: not Linux x86-64, no Python 3.11, no venv module, or pip failed; the text says what mends it.
    """
    if version is not None and version not in VERSIONS:
        raise InstallError(f"no pins for SGLang {version}; there are pins for {', '.join(VERSIONS)}")
    candidates = [version] if version else [VERSIONS[0], FOR_CUDA_TORCH]
    for name in candidates:
        if found := _stamped(name):
            return found
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise InstallError("the pinned SGLang runs on Linux x86-64 only")
    first = candidates[0]
    with _locked(first):
        if found := _stamped(first):  # another process was quicker
            return found
        venv = _folder(first)
        if _has_all(venv, _pins(first, "cpu")):
            return _finish(first, "cpu", venv)
        say(f"SGLang {first}: making a venv in {venv}")
        _make_venv(venv)
        flavour = torch_flavour(venv / "bin" / "python")
        if version is None and flavour == "cuda":
            shutil.rmtree(venv)
            return ensure(FOR_CUDA_TORCH, say=say)
        _install(first, flavour, venv, say)
        return _finish(first, flavour, venv)


def torch_flavour(python: Path) -> str:
    """``cpu`` or ``cuda``: what ``pip install torch`` would bring here, asked of pip itself.

    Raises:
        InstallError: pip has no such torch at all.
    """
    pin = next(p for p in _pins(VERSIONS[0], "cpu") if p.startswith("torch=="))
    done = subprocess.run(
        [
            *(str(python), "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--dry-run", "--ignore-installed", "--report", "-", pin),
        ],
        capture_output=True,
        text=True,
        env=_env(),
    )
    if done.returncode:
        raise InstallError(f"pip finds no {pin} for this machine:\n{done.stderr.strip()}")
    needs = json.loads(done.stdout)["install"][0]["metadata"].get("requires_dist", [])
    return "cuda" if any(re.match(r"(nvidia|cuda)[-_]", n) for n in needs) else "cpu"


def _pins(version: str, flavour: str) -> list[str]:
    names = [f"torch-{flavour}.txt", "base.txt", f"{version}.txt"]
    lines = [line for name in names for line in (PINS / name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _key(version: str, flavour: str) -> str:
    text = "\n".join(_pins(version, flavour))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _folder(version: str) -> Path:
    return cache() / "sglang" / version


def _stamped(version: str) -> Install | None:
    venv = _folder(version)
    try:
        stamp = json.loads((venv / STAMP).read_text())
        flavour = stamp["flavour"]
        same = stamp["pins"] == _key(version, flavour)
    except (OSError, ValueError, KeyError):
        return None
    return Install(version, flavour, venv) if same else None


def _finish(version: str, flavour: str, venv: Path) -> Install:
    made = Install(version, flavour, venv)
    if flavour == "cpu":
        _patch_torchvision(made.site)
    part = venv / (STAMP + ".part")
    part.write_text(json.dumps({"flavour": flavour, "pins": _key(version, flavour)}))
    part.replace(venv / STAMP)
    return made


def _patch_torchvision(site: Path) -> None:
    meta = site / "torchvision" / "_meta_registrations.py"
    text = meta.read_text()
    meta.write_text(re.sub(r'^@torch\.library\.register_fake\("torchvision::.*\n', "", text, flags=re.MULTILINE))
    for tools in ("nvidia/bin", "nvidia/lib/cupti", "nvidia/lib/cupti-blackwell", "amd/lib"):
        # 466 MB that only a GPU's compiler opens.
        shutil.rmtree(site / "triton" / "backends" / tools, ignore_errors=True)


def _has_all(venv: Path, pins: Sequence[str]) -> bool:
    """Every pin is installed to the end (pip writes RECORD last)."""
    site = Install("", "", venv).site

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    there = set()
    for record in site.glob("*.dist-info/RECORD"):
        name, _, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
        there.add(f"{normal(name)}=={version.split('+')[0]}")
    wanted = {f"{normal(name)}=={version}" for name, version in (p.split("==") for p in pins)}
    return wanted <= there


def _python() -> str:
    own = sys.executable if sys.version_info[:2] == PYTHON else None
    name = "python{}.{}".format(*PYTHON)
    for python in filter(None, (own, shutil.which(name))):
        probe = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, text=True)
        if probe.returncode == 0:
            return python
        if "ensurepip" in probe.stderr or "venv" in probe.stderr:
            raise InstallError(f"{python} has no venv module; on Debian and Ubuntu: apt-get install {name}-venv")
    raise InstallError(
        f"SGLang's pins are for {name}, which is not here; on Debian 12: apt-get install python3 python3-venv"
    )


def _make_venv(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([_python(), "-m", "venv", str(venv)], capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"no venv could be made in {venv}:\n{done.stdout}{done.stderr}".strip())


def _install(version: str, flavour: str, venv: Path, say: Say) -> None:
    python = venv / "bin" / "python"
    label = f"SGLang {version}"
    rest = [PINS / "base.txt", PINS / f"{version}.txt"]
    free_gb = shutil.disk_usage(venv).free / 1e9
    need_gb = 3 if flavour == "cpu" else 12
    if free_gb < need_gb:
        raise InstallError(f"{label} needs about {need_gb} GB while it installs; {venv} has {free_gb:.1f} GB left")
    if flavour == "cuda":
        say(f"{label}: pip has only a CUDA build of torch here; it is about 3 GB to fetch")
        _pip(python, [PINS / "torch-cuda.txt"], deps=True, label=f"{label}: torch", say=say)
        _pip(python, rest, deps=False, label=label, say=say)
    else:
        _pip(python, [PINS / "torch-cpu.txt", *rest], deps=False, label=label, say=say)


def _pip(python: Path, lists: Sequence[Path], *, deps: bool, label: str, say: Say) -> None:
    # Compiling every file takes longer than all the rest; the first start compiles what it imports.
    command = [str(python), "-m", "pip", "install", "--no-compile", "--progress-bar", "off"]
    command += [] if deps else ["--no-deps"]
    for name in lists:
        command += ["-r", str(name)]
    total = sum(line.count("==") for name in lists for line in name.read_text().splitlines() if line[:1] != "#")
    of = "" if deps else f" of {total}"
    start = time.monotonic()
    state = ["asking pip"]
    tail: deque[str] = deque(maxlen=25)
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_env())
    assert pip.stdout is not None

    def read(lines: Iterator[str]) -> None:
        n = 0
        for line in lines:
            tail.append(line)
            if line.startswith("Collecting"):
                n += 1
                state[0] = f"fetching, {n}{of}: {line.split()[1]}"
            elif line.startswith("Installing collected"):
                state[0] = f"unpacking {line.count(',') + 1} packages"

    reader = threading.Thread(target=read, args=(iter(pip.stdout),), daemon=True)
    reader.start()
    try:
        while True:
            try:
                pip.wait(0.5)
                break
            except subprocess.TimeoutExpired:
                say(f"{label}: {state[0]} ({time.monotonic() - start:.0f} s)")
    except BaseException:
        pip.kill()
        raise
    finally:
        pip.wait()
        reader.join()
        pip.stdout.close()
    if pip.returncode:
        raise InstallError(f"{label}: pip failed. Its last lines:\n{''.join(tail)}".rstrip())
    say(f"{label}: installed in {time.monotonic() - start:.0f} s")


def _env() -> dict[str, str]:
    """Without what would let another environment's packages in."""
    drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_REQUIRE_VIRTUALENV")
    env = {k: v for k, v in os.environ.items() if k not in drop}
    return {**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def _locked(version: str) -> Iterator[None]:
    folder = cache() / "sglang"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
