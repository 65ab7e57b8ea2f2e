"""PEP 768 on a real Python 3.14 (an installed one, else Debian's: see python314.py): the target is never stopped."""

from __future__ import annotations

import struct
import time

import pytest
from sgtop_probes.attach import folder, interpreter, pep768
from sgtop_probes.errors import AttachError

from . import python314, rig


@pytest.fixture(scope="module")
def python() -> list[str]:
    try:
        return python314.command()
    except python314.NotToBeHad as e:
        pytest.skip(f"no Python 3.14 can be had here: {e}")


@pytest.mark.parametrize("mode", ["objects", "quiet", "imports"])
def test_attach_talk_leave(python: list[str], mode: str) -> None:
    with rig.target(mode, python=python) as t:
        connection = rig.attach(t)
        assert connection.way == "pep768"
        assert rig.echo(connection)["ok"]
        connection.close()
        rig.wait_for(lambda: "sgtop-agent" not in t.comms())
        report = t.end()
    assert report["modules"] == []
    assert report["finders"] == 0
    assert report["errors"] == 0


def test_forty_times_in_a_row(python: list[str]) -> None:
    with rig.target("parked", python=python, helpers=0) as t:
        seen = []
        before = rig.private_folders()
        for _ in range(40):
            connection = rig.attach(t, ways=("pep768",))
            rig.echo(connection)
            connection.close()
            rig.wait_for(lambda: not any(c.startswith("sg") for c in t.comms()))
            time.sleep(0.01)
            seen.append((t.fds(), len(t.comms())))
            assert rig.private_folders() <= before
        t.end()
    assert len(set(seen[4:])) == 1


def test_switched_off_in_the_server(python: list[str]) -> None:
    """Then the pending call comes next, and it is known why."""
    with rig.target("objects", python=python, env={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}) as t:
        with pytest.raises(AttachError, match="switched off"):
            rig.attach(t, ways=("pep768",))
        connection = rig.attach(t)
        assert connection.way == "pending-call"
        connection.close()
        t.end()


def test_blocked_and_nothing_fires_late(python: list[str]) -> None:
    """The script's files are gone when the main thread comes back."""
    with rig.target("nap", python=python, helpers=0) as t:
        with pytest.raises(AttachError) as caught:
            rig.attach(t, ways=("pep768",), timeout_s=1)
        assert caught.value.kind == "hung"
        time.sleep(4.5)
        assert not any(c.startswith("sg") for c in t.comms())
        report = t.end()
    assert report["modules"] == []


def test_no_folder_for_the_script(python: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(pid: int) -> folder.PrivateFolder:
        raise folder.UnsafeFolder("/tmp: read-only file system")

    monkeypatch.setattr(folder.PrivateFolder, "create", none)
    with rig.target("objects", python=python) as t:
        with pytest.raises(AttachError, match="read-only file system"):
            rig.attach(t, ways=("pep768",))
        rig.attach(t).close()  # the pending call needs none
        t.end()


def test_offsets_are_read_from_the_target(python: list[str]) -> None:
    with rig.target("quiet", python=python) as t:
        offsets = pep768.check(t.pid, interpreter.inspect(t.pid))
        assert offsets.version == (3, 14)
        assert offsets.path_size == 512
        t.end()


def header(version: int, group: tuple[int, ...]) -> bytes:
    words = [0] * 256
    words[0] = struct.unpack("<Q", b"xdebugpy")[0]
    words[1] = version << 16
    words[100 : 100 + len(group)] = group
    return struct.pack("<256Q", *words)


def test_older_and_unknown_layouts() -> None:
    with pytest.raises(AttachError, match=r"older than 3\.13"):
        pep768.parse(bytes(2048))
    with pytest.raises(AttachError, match=r"runs Python 3\.13"):
        pep768.parse(header(0x030D, (24, 400, 500, 0, 4, 512)))
    with pytest.raises(AttachError, match="unknown layout"):
        pep768.parse(header(0x030E, (24, 400, 500, 0, 8, 512)))
    assert pep768.parse(header(0x030E, (24, 400, 500, 0, 4, 512))).support == 400
