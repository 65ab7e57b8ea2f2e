"""The first rung: an agent that listens in a socket folder, with a token in a file beside the socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sgtop_agent import wire
from sgtop_probes.attach import AttachOptions, folder, open_rank, plugin
from sgtop_probes.discovery import RankProcess
from sgtop_probes.errors import AttachError

TOKEN = "c0ffee" * 5


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A socket folder that this process's own agent would use; deeper than sun_path is long."""
    folder = tmp_path / ("deep" * 30) / "sockets"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    monkeypatch.setenv(plugin.DIR_VARIABLE, str(folder))
    return folder


@pytest.fixture
def agent(place: Path) -> Iterator[list[wire.Frame]]:
    """An agent of this very process; the hellos that it got."""
    seen: list[wire.Frame] = []
    listener = socket.socket(socket.AF_UNIX)
    fd = os.open(place, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{fd}/sgtop-{os.getpid()}.sock")
    os.close(fd)
    listener.listen(4)
    token = place / f"sgtop-{os.getpid()}.token"
    token.write_text(TOKEN)
    token.chmod(0o600)

    def serve() -> None:
        while True:
            try:
                peer = listener.accept()[0]
            except OSError:
                return
            with peer:
                data = peer.recv(65536)
                if data:
                    seen.extend(wire.FrameReader().feed(data))
                    peer.sendall(wire.pack({"k": "hello", "proto": wire.PROTOCOL, "token": TOKEN, "way": "plugin"}))
                    peer.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield seen
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_plugin_comes_first(agent: list[wire.Frame]) -> None:
    connection = open_rank(RankProcess("TP0", os.getpid()), options=AttachOptions(nvtx=True))
    assert connection.way == "plugin"
    assert agent[0]["token"] == TOKEN
    assert agent[0]["nvtx"] is True
    connection.close()


def test_found_by_its_socket_without_a_word(agent: list[wire.Frame], place: Path) -> None:
    assert plugin.find(os.getpid()) == str(place)
    assert agent == []


def test_folder_open_to_others(agent: list[wire.Frame], place: Path) -> None:
    place.chmod(0o755)
    with pytest.raises(AttachError, match="not safe") as caught:
        plugin.connect(os.getpid())
    assert "mode 755" in caught.value.why
    assert caught.value.mend == f"chmod 700 {place}"


def test_token_of_another(agent: list[wire.Frame], place: Path) -> None:
    (place / f"sgtop-{os.getpid()}.token").write_text("0" * 30)
    with pytest.raises(AttachError, match="token is wrong"):
        plugin.connect(os.getpid())


def test_token_is_no_link(agent: list[wire.Frame], place: Path) -> None:
    token = place / f"sgtop-{os.getpid()}.token"
    token.rename(place / "elsewhere")
    token.symlink_to(place / "elsewhere")
    with pytest.raises(plugin.NotThere):
        plugin.connect(os.getpid())


def test_socket_that_an_ended_server_left(place: Path) -> None:
    (place / f"sgtop-{os.getpid()}.token").write_text(TOKEN)
    fd = os.open(place, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"/proc/self/fd/{fd}/sgtop-{os.getpid()}.sock")
    os.close(fd)
    with pytest.raises(plugin.NotThere, match=str(place)):
        plugin.connect(os.getpid())


def test_links_on_the_way_are_followed(
    agent: list[wire.Frame], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/var/run is one on many systems."""
    (tmp_path / "way").symlink_to(place.parent)
    monkeypatch.setenv(plugin.DIR_VARIABLE, str(tmp_path / "way" / place.name))
    plugin.connect(os.getpid()).close()


def test_volume_that_is_mounted_here_too(agent: list[wire.Frame], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar that may not enter the server's /proc/PID/root reaches the folder by its own path."""
    enter = folder.open_folder

    def refuse_others(pid: int | str, path: str, **options: bool) -> int:
        if pid != "self":
            raise PermissionError(13, "Permission denied", path)
        return enter(pid, path, **options)

    monkeypatch.setattr(folder, "open_folder", refuse_others)
    plugin.connect(os.getpid()).close()


def test_link_to_a_socket_folder_is_not_followed(
    agent: list[wire.Frame], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(place)
    monkeypatch.setenv(plugin.DIR_VARIABLE, str(tmp_path / "link"))
    monkeypatch.setattr(plugin, "listening", lambda pid: [])
    with pytest.raises(plugin.NotThere):
        plugin.connect(os.getpid())
