"""When SGLang is installed anew, and which build of torch it is installed for."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tools.sglang_cpu import install
from tools.sglang_cpu.install import STAMP, VERSIONS, Install, InstallError, ensure, torch_flavour

VERSION = VERSIONS[0]


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache in which an install only lays the metadata that pip would lay; the flavours that were built."""
    monkeypatch.setenv("SGTOP_CACHE", str(tmp_path))
    built: list[str] = []

    def lay(version: str, flavour: str, venv: Path, say: object) -> None:
        built.append(flavour)
        site = Install(version, flavour, venv).site
        for pin in install._pins(version, flavour):
            name, _, number = pin.partition("==")
            info = site / f"{name.replace('-', '_')}-{number}.dist-info"
            info.mkdir(parents=True)
            (info / "RECORD").touch()
        meta = site / "torchvision" / "_meta_registrations.py"
        meta.parent.mkdir()
        meta.write_text('@torch.library.register_fake("torchvision::nms")\ndef meta_nms(): ...\n')

    def empty(venv: Path) -> None:
        shutil.rmtree(venv, ignore_errors=True)
        venv.mkdir(parents=True)

    monkeypatch.setattr(install, "_install", lay)
    monkeypatch.setattr(install, "_make_venv", empty)
    monkeypatch.setattr(install, "torch_flavour", lambda python: "cpu")
    return built


def test_installed_once(builds: list[str]) -> None:
    first = ensure(VERSION)
    assert (first.version, first.flavour, builds) == (VERSION, "cpu", ["cpu"])
    assert ensure(VERSION) == first
    assert ensure() == first
    assert builds == ["cpu"]


def test_torchvision_is_patched(builds: list[str]) -> None:
    text = (ensure(VERSION).site / "torchvision" / "_meta_registrations.py").read_text()
    assert text == "def meta_nms(): ...\n"


def test_other_pins_are_installed_anew(builds: list[str]) -> None:
    stamp = ensure(VERSION).venv / STAMP
    stamp.write_text(json.dumps({"flavour": "cpu", "pins": "of another list"}))
    (ensure(VERSION).site / "numpy-0.dist-info").mkdir()
    assert builds == ["cpu"]  # everything of the pins was there: only the stamp was written
    stamp.unlink()
    next(ensure(VERSION).site.glob("sglang-*.dist-info")).joinpath("RECORD").unlink()
    stamp.unlink()
    ensure(VERSION)
    assert builds == ["cpu", "cpu"]


def test_half_finished_install_is_done_again(builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = install._install

    def half(version: str, flavour: str, venv: Path, say: object) -> None:
        whole(version, flavour, venv, say)  # type: ignore[arg-type]
        next(Install(version, flavour, venv).site.glob("tqdm-*.dist-info")).joinpath("RECORD").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(install, "_install", half)
    with pytest.raises(KeyboardInterrupt):
        ensure(VERSION)
    monkeypatch.setattr(install, "_install", whole)
    ensure(VERSION)
    assert builds == ["cpu", "cpu"]


def test_where_torch_is_a_cuda_build_the_default_is_its_sglang(
    builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "torch_flavour", lambda python: "cuda")
    made = ensure()
    assert (made.version, made.flavour) == (install.FOR_CUDA_TORCH, "cuda")
    # Its torchvision fits: nothing is taken out of it.
    assert "register_fake" in (made.site / "torchvision" / "_meta_registrations.py").read_text()
    assert ensure() == made
    assert builds == ["cuda"]


def test_version_without_pins(builds: list[str]) -> None:
    with pytest.raises(InstallError, match=r"no pins for SGLang 0\.1; there are pins for 0\.5\.20"):
        ensure("0.1")


@pytest.mark.parametrize(
    ("needs", "flavour"),
    [
        (["filelock", "sympy>=1.13.3"], "cpu"),
        (["filelock", 'nvidia-cudnn-cu13==9.1; platform_system == "Linux"'], "cuda"),
        (["cuda-bindings<14,>=13.0"], "cuda"),
    ],
)
def test_pip_is_asked_which_torch_it_has(
    needs: list[str], flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wheel(tmp_path, needs)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert torch_flavour(Path(sys.executable)) == flavour


def test_pip_has_no_torch_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(InstallError, match="pip finds no torch=="):
        torch_flavour(Path(sys.executable))


def _wheel(folder: Path, needs: list[str]) -> None:
    version = next(p for p in install._pins(VERSION, "cpu") if p.startswith("torch==")).removeprefix("torch==")
    info = f"torch-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as z:
        z.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
