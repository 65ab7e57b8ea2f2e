"""Other users, other namespaces, read-only roots: what works, and what is refused in words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sgtop_agent
import sgtop_probes
from sgtop_probes.attach import folder, pidfd
from sgtop_probes.errors import AttachError

from . import rig

root_only = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("setpriv", "unshare"))),
    reason="needs root, setpriv and unshare (util-linux), to become another user or to make namespaces",
)
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")
NO_CAPS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")

CLIENT = """
import json, sys
from pathlib import Path
from sgtop_probes.attach import AttachOptions, open_rank
from sgtop_probes.discovery import RankProcess
from sgtop_probes.errors import AttachError
try:
    c = open_rank(RankProcess("TP0", int(sys.argv[1])), options=AttachOptions(package=Path(sys.argv[2]), timeout_s=5))
    print(json.dumps({"way": c.way}))
    c.close()
except AttachError as e:
    print(json.dumps({"kind": e.kind, "what": e.what, "why": e.why, "mend": e.mend, "exit": e.exit_code}))
"""


def packages() -> Path:
    """Everything a client needs, where everybody may read it."""
    place = rig.scratch() / "packages"
    if place.exists():
        return place
    hide = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sgtop_probes.__file__).parent, place / "sgtop_probes", ignore=hide)
    shutil.copytree(Path(sgtop_agent.__file__).parent, place / "sgtop_agent", ignore=hide)
    for name in ("msgpack", "psutil", "prometheus_client"):
        module = sys.modules.get(name) or __import__(name)
        shutil.copytree(Path(str(module.__file__)).parent, place / name, ignore=hide)
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
    return place


def python_for(prefix: tuple[str, ...]) -> str:
    """A Python of this version that ``prefix`` leaves runnable: the tests' own may stand in a home that is closed."""
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    look = (
        "import os, sys; runs = os.access(sys.executable, os.X_OK); "
        "sys.exit(not runs or '%d.%d' % sys.version_info[:2] != sys.argv[1])"
    )
    for path in (os.path.realpath(sys.executable), f"/usr/bin/python{mine}", f"/usr/local/bin/python{mine}"):
        if not os.path.exists(path):
            continue
        if subprocess.run([*prefix, path, "-S", "-c", look, mine], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"no Python {mine} here that {' '.join(prefix)} may run")


def client(prefix: tuple[str, ...], pid: int) -> dict[str, Any]:
    """Attach from another process that ``prefix`` changes."""
    words = [*prefix, python_for(prefix), "-S", "-c", CLIENT, str(pid), str(rig.tiny_agent())]
    done = subprocess.run(
        words, env={"PYTHONPATH": str(packages()), "PATH": os.environ["PATH"]}, cwd="/", capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr[-600:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@root_only
def test_unprivileged_user_and_a_server_of_root() -> None:
    with rig.target("quiet") as t:
        answer = client(NOBODY, t.pid)
        assert answer["kind"] == "permission"
        assert answer["exit"] == 5
        assert "uid 65534" in answer["why"]
        assert "uid 0" in answer["why"]
        assert "CAP_SYS_PTRACE" in answer["why"]
        assert "SYS_PTRACE" in answer["mend"] or "sudo" in answer["mend"]
        t.end()


@root_only
def test_unprivileged_user_and_their_own_server() -> None:
    with rig.target("quiet", prefix=NOBODY) as t:
        answer = client(NOBODY, t.pid)
        expected = {"way": "pending-call"}
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        if scope.exists() and scope.read_text().strip() != "0":
            assert "ptrace_scope" in answer["why"]
        else:
            assert answer == expected
        t.end()


@root_only
def test_root_and_a_server_of_another_user() -> None:
    with rig.target("quiet", prefix=NOBODY) as t:
        connection = rig.attach(t)
        assert rig.echo(connection)["ok"]
        connection.close()
        t.end()


@root_only
def test_root_without_capabilities_and_a_server_with_them() -> None:
    with rig.target("quiet") as t:
        answer = client(NO_CAPS, t.pid)
        assert answer["kind"] == "permission"
        t.end()


# --- namespaces -------------------------------------------------------------------------------------

CONTAINER = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc")


def makes_namespaces(*words: str) -> bool:
    return subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0


@root_only
@pytest.mark.parametrize("pair", [True, False], ids=["pair", "listen"])
def test_other_user_mount_and_pid_namespace(pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not makes_namespaces(*CONTAINER):
        pytest.skip("this kernel lets nobody make user namespaces")
    monkeypatch.setattr(pidfd, "works", lambda: pair)
    with rig.target("quiet", prefix=CONTAINER) as t:
        assert t.pid != t.process.pid
        connection = rig.attach(t)
        assert connection.hello["pid"] == 1
        assert rig.echo(connection)["ok"]
        connection.close()
        t.end()


@root_only
def test_other_time_namespace() -> None:
    """Its CLOCK_MONOTONIC is a day ahead: the deadline is given in its time."""
    words = ("unshare", "--time", "--monotonic", "86400", "--fork")
    if not makes_namespaces(*words):
        pytest.skip("this kernel or this unshare knows no time namespaces")
    with rig.target("quiet", prefix=words) as t:
        connection = rig.attach(t)
        assert rig.echo(connection)["ok"]
        connection.close()
        t.end()


READ_ONLY = """
mount -o remount,bind,ro / || exit 1
for d in /tmp /var/tmp /dev/shm /run; do
  mount -o bind $d $d 2>/dev/null && mount -o remount,bind,ro $d
done
exec "$0" "$@"
"""


@root_only
@pytest.mark.parametrize("pair", [True, False], ids=["pair", "listen"])
def test_read_only_root(pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket pair needs no file; a socket folder does, and says for each place why it was none."""
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", READ_ONLY)
    if not makes_namespaces(*prefix):
        pytest.skip("no mounts may be made here")
    monkeypatch.setattr(pidfd, "works", lambda: pair)
    with rig.target("quiet", prefix=prefix) as t:
        if pair:
            connection = rig.attach(t)
            assert rig.echo(connection)["ok"]
            connection.close()
        else:
            with pytest.raises(AttachError) as caught:
                rig.attach(t)
            assert "/tmp: read-only file system" in caught.value.why
            assert "--cap-add=SYS_PTRACE" in caught.value.mend
        t.end()


# --- folders in somebody else's file system ---------------------------------------------------------


def create(*candidates: Path) -> folder.PrivateFolder:
    return folder.PrivateFolder.create(os.getpid(), tuple(str(c) for c in candidates))


def test_private_folder(tmp_path: Path) -> None:
    made = create(tmp_path)
    path = made.write("a.bin", b"content")
    assert Path(path).read_bytes() == b"content"
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(made.path).stat().st_mode & 0o777 == 0o700
    assert made.read("a.bin") == b"content"
    made.remove()
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_planted_symlink_in_place_of_the_folder(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "tmp").symlink_to(real)
    with pytest.raises(folder.UnsafeFolder, match="a symlink stands in its place"):
        create(tmp_path / "tmp")
    assert list(real.iterdir()) == []


def test_planted_symlink_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(folder.UnsafeFolder, match="symlink"):
        create(tmp_path / "link" / "b")


def test_planted_file(tmp_path: Path) -> None:
    made = create(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (Path(made.path) / "agent.bin").symlink_to(victim)
    with pytest.raises(folder.UnsafeFolder, match="exists already"):
        made.write("agent.bin", b"overwritten")
    assert victim.read_text() == "precious"
    assert made.read("agent.bin") is None  # a link is not followed for reading either
    made.remove()
    assert victim.exists()


def test_folder_that_others_may_write_to(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(folder.UnsafeFolder, match="sticky"):
        create(shared)
    shared.chmod(0o1777)
    create(shared).remove()


@root_only
def test_folder_of_a_stranger(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 12345, 12345)
    with pytest.raises(folder.UnsafeFolder, match="uid 12345"):
        create(other)


@root_only
def test_folder_belongs_to_the_server_and_its_links_end_there() -> None:
    """Root makes it for another user's process; an absolute link in that root means the target's own files."""
    with rig.target("quiet", prefix=NOBODY) as t:
        made = folder.PrivateFolder.create(t.pid)
        assert Path(made.path).stat().st_uid == 65534
        assert Path(made.write("x", b"y")).stat().st_uid == 65534
        made.remove()
        t.end()


def test_every_reason_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(folder.UnsafeFolder) as caught:
        create(tmp_path / "missing", tmp_path / "file")
    assert "missing: no such file or directory" in str(caught.value)
    assert "file: not a directory" in str(caught.value)
