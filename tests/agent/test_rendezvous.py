"""Folders, sockets and tokens of an agent that listens."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from sgtop_agent import rendezvous
from sgtop_agent.rendezvous import Listener, RendezvousError


def test_the_folder_is_made_for_us_alone_and_holds_socket_and_token(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    listener = Listener(str(folder), 42, None)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    token = folder / "sgtop-42.token"
    assert token.read_text() == listener.token
    assert len(listener.token) == 32
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_ISSOCK((folder / "sgtop-42.sock").stat().st_mode)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(listener.path)
    accepted, _ = listener.sock.accept()
    assert rendezvous.allowed(accepted)
    accepted.close()
    peer.close()
    listener.close()
    listener.close()
    assert list(folder.iterdir()) == []


def test_a_planted_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RendezvousError, match="symlink"):
        Listener(str(tmp_path / "s"), 42, None)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_planted_token_link_is_replaced_not_written_through(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "sgtop-42.token").symlink_to(victim)
    listener = Listener(str(folder), 42, None)
    assert victim.read_text() == "precious"
    assert not (folder / "sgtop-42.token").is_symlink()
    listener.close()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(RendezvousError, match=f"{mode:04o}"):
        Listener(str(folder), 42, None)


def test_no_folder_can_be_made_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousError, match="cannot make"):
        Listener(str(tmp_path / "file" / "s"), 42, None)


def test_the_socket_of_a_dead_process_with_our_pid_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "sgtop-42.sock"))
    dead.close()
    listener = Listener(str(folder), 42, "given")
    assert sorted(os.listdir(folder)) == ["sgtop-42.sock"]  # a given token is not written down
    listener.close()


def test_what_somebody_put_in_our_place_is_not_removed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    listener = Listener(str(folder), 42, "given")
    (folder / "sgtop-42.sock").unlink()
    (folder / "sgtop-42.sock").write_text("someone else's")
    listener.close()
    assert (folder / "sgtop-42.sock").read_text() == "someone else's"


def test_a_path_longer_than_sun_path_works(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 90) / ("e" * 90)
    folder.parent.mkdir()
    listener = Listener(str(folder), 42, None)
    assert len(listener.path) > 108
    assert (folder / "sgtop-42.sock").exists()
    listener.close()


def test_the_default_folder_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGTOP_SOCKET_DIR", raising=False)
    assert rendezvous.default_folder() in (f"/run/user/{os.geteuid()}/sgtop", f"/tmp/sgtop-{os.geteuid()}")
    monkeypatch.setenv("SGTOP_SOCKET_DIR", "/mnt/shared")
    assert rendezvous.default_folder() == "/mnt/shared"


def test_thread_names_are_the_kernels(tmp_path: Path) -> None:
    import threading

    seen: list[str] = []

    def body() -> None:
        rendezvous.name_thread("sg:123:beef")
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as f:
            seen.append(f.read().strip())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == ["sg:123:beef"]
