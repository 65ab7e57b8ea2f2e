"""Packs SGLang 0.5.16 for CUDA into one archive of about 55 MB; takes a few minutes and fetches about 0.6 GB.

Left out, for size: FlashAttention-3, FlashMLA and the kernels for other GPUs than Hopper (hence
``--attention-backend triton``), the gRPC core, tests, symbols.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

PINS = Path(__file__).parent / "pins.txt"
PYTHON = "3.12"
GLIBC = (34, 31, 28, 27, 26, 24, 17, 12, 5)
"""pip takes a wheel only if its manylinux number is named exactly."""
KERNEL_PARTS = ("sgl_kernel/*.py", "sgl_kernel/sm90/*", "sgl_kernel/spatial_ops*", "sglang_kernel*", "triton_kernels/*")
NOT_NEEDED = ("xgrammar/lib", "xgrammar/include", "sglang/multimodal_gen")


def build(out: Path) -> None:
    """Write the archive ``out`` (``.txz``).

    Raises:
        subprocess.CalledProcessError: pip or tar failed; their own words are on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="sgtop-bundle-") as tmp:
        wheels, site = Path(tmp, "wheels"), Path(tmp, "site")
        _download(wheels)
        site.mkdir()
        for wheel in sorted(wheels.glob("*.whl")):
            _unpack(wheel, site)
        _slim(site)
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "--use-compress-program=xz -T0 -3", "-cf", out, "-C", site, "."], check=True)


def _download(wheels: Path) -> None:
    platforms = [f"manylinux_2_{n}_x86_64" for n in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp", "-d", str(wheels), "-r", str(PINS)]
    for platform in platforms:
        command += ["--platform", platform]
    subprocess.run(command, check=True)


def _unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        if wheel.name.startswith("sglang_kernel"):
            names = [n for n in names if any(fnmatch(n, part) for part in KERNEL_PARTS)]
        z.extractall(site, names)


def _slim(site: Path) -> None:
    for part in NOT_NEEDED:
        shutil.rmtree(site / part, ignore_errors=True)
    for core in site.glob("sglang/srt/grpc/_core*.so"):
        core.unlink()
    for folder in [*site.rglob("tests"), *site.rglob("__pycache__")]:
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
    big = [str(f) for f in site.rglob("*.so*") if f.is_file() and f.stat().st_size > 200_000]
    # One that strip does not understand stays as it is.
    subprocess.run(["strip", "--strip-unneeded", *big], stderr=subprocess.DEVNULL, check=False)
