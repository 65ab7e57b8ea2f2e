"""The parts of an attach by themselves: symbols, registers, payload, verdicts."""

from __future__ import annotations

import builtins
import ctypes
import marshal
import os
import random
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from sgtop_probes import doctor, permissions, procfs
from sgtop_probes.attach import elf, hang, interpreter, loader, memory, payload, pending, ptrace

from . import rig

OPTS = {"way": "pending-call", "token": "t", "rendezvous": "pair", "nonce": "0000", "dir": None, "nvtx": False}


# --- symbols ----------------------------------------------------------------------------------------


def test_addresses_are_those_that_the_loader_found() -> None:
    python = interpreter.inspect(os.getpid())
    for name, address in (
        ("Py_AddPendingCall", python.add_pending_call),
        ("PyRun_SimpleString", python.run_string),
        ("mmap", python.mmap),
        ("munmap", python.munmap),
    ):
        assert ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value == address
    assert python.version == sys.version_info[:2]


@pytest.mark.parametrize("version", list(rig.pythons()))
def test_interpreters_are_recognised(version: str) -> None:
    with rig.target("quiet", python=rig.pythons()[version]) as t:
        python = interpreter.inspect(t.pid)
        assert f"{python.version[0]}.{python.version[1]}" == version
        assert python.runtime is not None
        t.end()


def test_hashes_of_symbol_names() -> None:
    """Values from the ABI's own examples."""
    assert elf.gnu_hash(b"printf") == 0x156B2BB8
    assert elf.gnu_hash(b"exit") == 0x7C967E3F
    assert elf.sysv_hash(b"printf") == 0x077905A6
    assert elf.sysv_hash(b"exit") == 0x0006CF04


class FakeImage:
    """A tiny ELF image in memory with a System V hash table and pointers that nobody relocated (musl)."""

    BASE = 0x10000

    def __init__(self, machine: int = 62) -> None:
        data = bytearray(0x400)
        data[:6] = b"\x7fELF\x02\x01"
        struct.pack_into("<H", data, 18, machine)
        struct.pack_into("<Q", data, 32, 64)
        struct.pack_into("<HH", data, 54, 56, 2)
        struct.pack_into("<IIQQQQQQ", data, 64, elf.PT_LOAD, 5, 0, 0, 0, 0x400, 0x400, 4096)
        struct.pack_into("<IIQQQQQQ", data, 120, elf.PT_DYNAMIC, 6, 0x100, 0x100, 0, 80, 80, 8)
        tags = (elf.DT_STRTAB, 0x200, elf.DT_STRSZ, 16, elf.DT_SYMTAB, 0x240, elf.DT_HASH, 0x300, 0, 0)
        struct.pack_into("<10Q", data, 0x100, *tags)
        data[0x200:0x20A] = b"\0printf\0\0\0"
        struct.pack_into("<IBBHQQ", data, 0x240 + 24, 1, 0x12, 0, 1, 0x1234, 0)
        struct.pack_into("<IIIII", data, 0x300, 1, 2, 1, 0, 0)
        self.data = bytes(data)

    def read(self, address: int, size: int) -> bytes:
        return self.data[address - self.BASE : address - self.BASE + size]


def test_unrelocated_pointers_and_the_old_hash_table() -> None:
    image = FakeImage()
    assert elf.Image(image.read, image.BASE, "x86_64").symbols(["printf", "exit"]) == {"printf": 0x11234}


def test_image_of_another_machine() -> None:
    image = FakeImage(machine=183)
    with pytest.raises(elf.ElfError, match="another machine"):
        elf.Image(image.read, image.BASE, "x86_64")
    assert elf.Image(image.read, image.BASE, "aarch64").symbols(["printf"])


# --- registers --------------------------------------------------------------------------------------


def saved(words: int) -> bytes:
    return struct.pack(f"<{words}Q", *(0x1000 * (i + 1) for i in range(words)))


def test_call_frame_on_x86_64() -> None:
    """System V ABI: arguments in rdi, rsi, rdx, rcx, r8, r9; the stack as after a call; red zone untouched."""
    registers, at = ptrace.call_frame(ptrace.X86_64, saved(27), 0xF00, (1, 2, 3, 4, -1, 6), 0)
    order = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss"
    names = {name: ptrace.word(registers, i) for i, name in enumerate(order.split(" "))}
    assert [names[n] for n in ("rdi", "rsi", "rdx", "rcx", "r8", "r9")] == [1, 2, 3, 4, 2**64 - 1, 6]
    assert names["rip"] == 0xF00
    assert names["orig_rax"] == 2**64 - 1
    assert names["rsp"] % 16 == 8
    assert names["rsp"] + 8 <= 0x14000 - 128
    assert names["rsp"] == at
    assert names["eflags"] & 0x500 == 0
    assert names["rbx"] == 0x6000


def test_call_frame_on_aarch64() -> None:
    """AAPCS64: arguments in x0 to x7, return address 0 in x30, the stack aligned to 16."""
    registers, at = ptrace.call_frame(ptrace.AARCH64, saved(34), 0xF00, (1, 2, 3), 0x9999)
    assert [ptrace.word(registers, i) for i in (0, 1, 2)] == [1, 2, 3]
    assert ptrace.word(registers, 30) == 0
    assert ptrace.word(registers, 32) == 0xF00
    assert ptrace.word(registers, 31) % 16 == 0
    assert ptrace.word(registers, 31) < 0x9999
    assert at == 0


# --- payload ----------------------------------------------------------------------------------------


def agent() -> payload.Agent:
    return payload.build(rig.tiny_agent(), sys.version_info[:2])


def mapped(page: pending.Page, deadline_ns: int) -> tuple[int, ctypes.Array[ctypes.c_char]]:
    """The page in our own memory; what it would unmap is asked for by the tracer's flag, which stays 0."""
    buffer = ctypes.create_string_buffer(page.size)
    address = ctypes.addressof(buffer)
    content = page.content(address, deadline_ns)
    ctypes.memmove(address, content, len(content))
    return address, buffer


def run_here(source: bytes) -> dict[str, Any]:
    """As PyRun_SimpleString would, with a stand-in for __main__."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<string>", "exec"), scope)
    scope.pop("__builtins__", None)
    return scope


def test_main_thread_only_looks_at_the_clock() -> None:
    """Late: nothing happens. In any case __main__ stays as it was."""
    page = payload.for_page(agent(), OPTS)
    address, buffer = mapped(page, time.monotonic_ns() - 1)
    source = buffer.raw[: buffer.raw.index(b"\0")]
    threads = len(os.listdir("/proc/self/task"))
    assert run_here(source) == {"__name__": "__main__"}
    assert len(os.listdir("/proc/self/task")) == threads
    assert memory.read(os.getpid(), address + page.status_at, 2) == b"\0\0"


def test_offsets_of_the_page_are_consistent() -> None:
    page = payload.for_page(agent(), OPTS)
    content = page.content(0x7F0012345000, 0x1234567890)
    text = content[: content.index(b"\0")].decode()
    assert len(text) == len(page.source)
    assert "a=0x00007f0012345000;" in text
    assert "D=0x0000001234567890" in text
    assert f"a+{page.blob_at}," in text
    assert f"u(a,{page.size})" in text
    assert content[page.blob_at :] == page.blob
    assert page.size >= len(content) + pending.STACK


def test_source_never_raises() -> None:
    """Whatever is wrong: an exception in a pending call would surface in the scheduler's loop."""
    page = payload.for_page(agent(), OPTS)
    source = page.content(0x1000, 2**62)[: len(page.source)]
    broken = source.replace(b"__import__('time')", b"__import__('nope')")
    assert broken != source
    assert run_here(broken) == {"__name__": "__main__"}


def test_versions_share_no_alias(tmp_path: Path) -> None:
    for name in ("one", "two"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(f"# {name}\n")
        (package / "boot.py").write_text("def start(opts): pass\n")
    one, two = (payload.build(tmp_path / n, (3, 11)) for n in ("one", "two"))
    assert one.alias != two.alias
    assert one.source_hash != two.source_hash


def test_ready_made_code_only_for_the_same_interpreter(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "boot.py").write_text("def start(opts):\n    return __name__, __package__\n")
    files = payload.package_files(tmp_path)
    for magic in (b"none", payload.importlib.util.MAGIC_NUMBER):
        made = loader.MemoryLoader("_sgtop_test", files, {"boot.py": b"damaged"}, magic)
        made.install()
        try:
            if magic == b"none":
                boot = payload.importlib.import_module("_sgtop_test.boot")
                assert boot.start(None) == ("_sgtop_test.boot", "_sgtop_test")
                assert boot.__spec__.loader is made
            else:
                with pytest.raises((ValueError, EOFError, TypeError)):
                    payload.importlib.import_module("_sgtop_test.boot")
        finally:
            made.remove()
            assert not [n for n in sys.modules if n.startswith("_sgtop_test")]
            assert made not in sys.path_importer_cache.values()


def test_files_of_the_package_can_be_read(tmp_path: Path) -> None:
    import pkgutil

    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "boot.py").write_text("")
    (tmp_path / "helper.so").write_bytes(b"\x7fELF")
    made = loader.MemoryLoader("_sgtop_test", payload.package_files(tmp_path), {}, b"")
    made.install()
    try:
        assert pkgutil.get_data("_sgtop_test", "helper.so") == b"\x7fELF"
        with pytest.raises(FileNotFoundError):
            pkgutil.get_data("_sgtop_test", "other.so")
    finally:
        made.remove()


def test_real_agent_fits() -> None:
    built = payload.build(payload.agent_folder(), sys.version_info[:2])
    assert len(built.blob) < payload.MAX_BLOB / 4


# --- verdicts ---------------------------------------------------------------------------------------


def verdict_of(
    monkeypatch: pytest.MonkeyPatch, first: procfs.ThreadLook, now: procfs.ThreadLook, seconds: float
) -> str:
    looks, times = [first, now], [0.0, seconds]
    monkeypatch.setattr(procfs, "look", lambda pid, tid=None: looks.pop(0))
    return hang.Watch(1, lambda: times.pop(0)).verdict().text


def test_verdicts_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = procfs.ThreadLook("S", 100, 50, "futex_wait_queue", {"x86_64": 202, "aarch64": 98}[os.uname().machine])
    text = verdict_of(monkeypatch, asleep, asleep, 40)
    assert text == (
        "main thread not in Python for 40 s: asleep in futex (waiting for a lock or for another thread) all the time"
    )
    stuck = procfs.ThreadLook("D", 100, 50, "nvidia_ioctl", None)
    assert "uninterruptible sleep in the kernel, in nvidia_ioctl" in verdict_of(monkeypatch, stuck, stuck, 3)
    ticks = os.sysconf("SC_CLK_TCK")
    busy = procfs.ThreadLook("R", 0, 50, "", None), procfs.ThreadLook("R", 2 * ticks, 60, "", None)
    assert "computes in native code (100% of a CPU)" in verdict_of(monkeypatch, *busy, 2)
    stopped = procfs.ThreadLook("T", 0, 0, "", None)
    assert "kill -CONT" in verdict_of(monkeypatch, stopped, stopped, 1)
    restarted = procfs.ThreadLook("S", 0, 1, "futex_wait_queue", {"x86_64": 219, "aarch64": 128}[os.uname().machine])
    assert "futex" in verdict_of(monkeypatch, restarted, restarted, 2)


@pytest.mark.parametrize(
    ("scope", "privileged", "uid", "says", "fix"),
    [
        (3, True, 0, "until the next boot", "plugin"),
        (1, False, None, "ptrace_scope is 1", "sgtop run"),
        (2, False, None, "tracing needs CAP_SYS_PTRACE", "sudo"),
        (None, False, 4242, "the server as uid 4242", "sudo"),
        (None, True, 4242, "security module", "apparmor"),
    ],
)
def test_reasons_of_a_refusal(
    monkeypatch: pytest.MonkeyPatch, scope: int | None, privileged: bool, uid: int | None, says: str, fix: str
) -> None:
    monkeypatch.setattr(permissions, "yama_scope", lambda: scope)
    monkeypatch.setattr(permissions, "in_container", lambda: False)
    monkeypatch.setattr(procfs, "has_capability", lambda number: privileged)
    monkeypatch.setattr(procfs, "uid", lambda pid: os.geteuid() if uid is None else uid)
    refusal = permissions.ptrace_refusal(os.getpid())
    assert says in refusal.why
    assert fix in refusal.mend


FIRST = {"cgroup": 4026531835, "pid": 4026531836, "uts": 4026531838, "ipc": 4026531839}


@pytest.mark.parametrize(
    ("marks", "own", "cgroup", "inside"),
    [
        ((), (), "0::/user.slice", False),
        (("/.dockerenv",), (), "0::/", False),  # a virtual machine whose disk was made from an image
        (("/.dockerenv",), ("pid", "uts", "ipc", "cgroup"), "0::/", True),
        (("/.dockerenv",), ("cgroup",), "0::/", True),  # --pid=host --uts=host --ipc=host
        (("/run/.containerenv",), ("pid",), "0::/", True),
        ((), ("pid",), "0::/", False),  # unshare -p is no container
        ((), (), f"0::/system.slice/docker-{64 * 'a'}.scope", True),
    ],
)
def test_what_is_a_container(
    monkeypatch: pytest.MonkeyPatch, marks: tuple[str, ...], own: tuple[str, ...], cgroup: str, inside: bool
) -> None:
    monkeypatch.setattr(permissions.os.path, "exists", lambda path: path in marks)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(procfs, "read", lambda path: cgroup if path.endswith("/cgroup") else None)
    monkeypatch.setattr(procfs, "namespace", lambda pid, kind: f"{kind}:[{FIRST[kind] + 1000 * (kind in own)}]")
    assert permissions.in_container() is inside


@pytest.mark.parametrize("inside", [True, False])
def test_doctor_speaks_of_docker_in_containers_only(monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    monkeypatch.setattr(permissions, "in_container", lambda: inside)
    monkeypatch.setattr(procfs, "has_capability", lambda number: False)
    checks = {c.name: c for c in doctor.host_checks()}
    assert ("in a container" in checks["machine"].text) is inside
    for name in ("priority", "GPU counters"):
        if checks[name].mend:
            assert ("Docker" in checks[name].mend) is inside


@pytest.mark.parametrize(
    ("user", "bounding", "fix"),
    [(1001, 1 << 19, "sudo sgtop"), (1001, 0, "--cap-add=SYS_PTRACE"), (0, 1 << 19, "--cap-add=SYS_PTRACE")],
)
def test_in_a_container_that_may_trace_root_is_enough(
    monkeypatch: pytest.MonkeyPatch, user: int, bounding: int, fix: str
) -> None:
    """A capability that the container has is of no use to a user without it, and need not be asked for again."""
    monkeypatch.setattr(permissions, "in_container", lambda: True)
    monkeypatch.setattr(procfs, "has_capability", lambda number: False)
    monkeypatch.setattr(procfs, "capabilities", lambda pid="self", which="CapEff": bounding)
    monkeypatch.setattr(procfs, "uid", lambda pid: 4242)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert fix in permissions.ptrace_refusal(os.getpid()).mend


LEAVING = """
import sys, threading, time

def start(opts):
    def go():
        time.sleep(0.0005)
        from . import late
        late.done.append(opts["number"])
        __spec__.loader.remove()
    threading.Thread(target=go).start()
"""


def test_one_that_comes_while_another_leaves_loses_nothing(tmp_path: Path) -> None:
    """Both are of one version; the one that leaves takes its modules along, at any moment of the other's beginning."""
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "boot.py").write_text(LEAVING)
    (tmp_path / "late.py").write_text("import builtins\ndone = builtins._sgtop_test_done\n")
    done: list[int] = []
    vars(builtins)["_sgtop_test_done"] = done
    made = payload.build(tmp_path, sys.version_info[:2])
    block = marshal.loads(zlib.decompress(made.blob))
    finders = list(sys.meta_path)

    def places() -> list[str]:
        return [place for place in list(sys.path_importer_cache) if place.startswith("/<")]

    try:
        for number in range(300):
            loader.start(block, {"deadline_ns": time.monotonic_ns() + 10**10, "number": number})
            time.sleep(random.Random(number).random() * 0.003)
        end = time.monotonic() + 10
        while len(done) < 300 and time.monotonic() < end:
            time.sleep(0.01)
        assert sorted(done) == list(range(300))
        while places() and time.monotonic() < end:
            time.sleep(0.01)
        assert not places()
        assert sys.meta_path == finders
        assert not [n for n in sys.modules if n.startswith(made.alias)]
    finally:
        del vars(builtins)["_sgtop_test_done"]
