"""Servers found from processes and sockets: parallelism, several at once, starting, other namespaces, other hosts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sgtop_probes import discovery, procfs, resolve, sockets, titles
from sgtop_probes.errors import NOT_SGLANG, TargetError
from sgtop_probes.launch import is_launch, parse_launch

from .fake_server import server

MODEL = ("--model-path", "org/model")


@pytest.fixture
def port() -> int:
    """A free port; the system's choice, far from those that tests of real servers use."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def found(pid: int) -> discovery.Server:
    return next(s for s in discovery.find_servers() if s.pid == pid)


def listening(*ports: int) -> list[tuple[str, str, int]]:
    return [("AF_INET", "127.0.0.1", p) for p in ports]


# --- titles and command lines -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "role", "label"),
    [
        ("sglang::scheduler", "scheduler", "TP0"),
        ("sglang::scheduler_TP3", "scheduler", "TP3"),
        ("sglang::scheduler_DP1_TP0", "scheduler", "DP1 TP0"),
        ("sglang::scheduler_DP1_PP0_ATTN_CP1_MOE_DP0_TP3_EP3", "scheduler", "DP1 PP0 ATTN_CP1 TP3"),
        ("sglang::scheduler_TP12_EP12        ", "scheduler", "TP12"),
        ("sglang::schedul", "scheduler", "TP0"),
        ("sglang::detokenizer", "detokenizer", "TP0"),
        ("sglang::detokenizer_router", "detokenizer-router", "TP0"),
        ("sglang::data_parallel_controller", "dp-controller", "TP0"),
        ("sglang::tokenizer_worker:123", "tokenizer-worker", "TP0"),
    ],
)
def test_titles(title: str, role: str, label: str) -> None:
    parsed = titles.parse(title)
    assert parsed is not None
    assert (parsed.role, parsed.label) == (role, label)


@pytest.mark.parametrize("text", ["python", "sgl_diffusion::scheduler_0", "grep sglang::scheduler", ""])
def test_titles_of_others(text: str) -> None:
    assert titles.parse(text) is None


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("python -m sglang.launch_server --port 1", True),
        ("/opt/venv/bin/python3.12 -u -m sglang.launch_server", True),
        ("python /x/site-packages/sglang/launch_server.py --tp 2", True),
        ("/opt/venv/bin/python /opt/venv/bin/sglang serve --model-path m", True),
        ("sglang serve --model-path m", True),
        ("bash -c python -m sglang.launch_server", False),
        ("docker run image python -m sglang.launch_server", False),
        ("grep -m sglang.launch_server", False),
        ("python -m sglang.bench_serving", False),
        ("sglang generate", False),
        ("python -c from multiprocessing.spawn import spawn_main", False),
        ("", False),
    ],
)
def test_command_lines(line: str, is_one: bool) -> None:
    assert is_launch(tuple(line.split())) is is_one


def test_arguments() -> None:
    line = "python -m sglang.launch_server --model m --tp-size=4 --dp 2 --port 1 --port 7 --nnodes x"
    args = parse_launch(line.split(" "))
    assert (args.model, args.tp, args.dp, args.port, args.nnodes, args.pp) == ("m", 4, 2, 7, None, None)
    assert not args.dp_attention
    assert parse_launch(["--enable-dp-attention", "--ssl-certfile", "c"]).tls


# --- process trees ----------------------------------------------------------------------------------


def test_tp_and_helpers(tmp_path: Path, port: int) -> None:
    tree = {"sglang::scheduler_TP0": [], "sglang::scheduler_TP1": [], "sglang::detokenizer": []}
    with server(tmp_path, [*MODEL, "--tp", "2", "--port", str(port)], tree, listening(port)) as pid:
        s = found(pid)
        assert [r.label for r in s.ranks] == ["TP0", "TP1"]
        assert [r.tp for r in s.ranks] == [0, 1]
        assert {h.role for h in s.helpers} == {"detokenizer", "tokenizer"}
        assert (s.state, s.port, s.name, s.args.model) == ("running", port, f":{port}", "org/model")
        assert s.url == f"http://127.0.0.1:{port}"
        assert {r.state for r in s.ranks} == {"running"}
        os.kill(s.ranks[1].pid or 0, signal.SIGSTOP)
        time.sleep(0.05)
        assert [r.state for r in found(pid).ranks] == ["running", "stopped"]


def test_dp_controller_in_between(tmp_path: Path, port: int) -> None:
    tree = {"sglang::data_parallel_controller": ["sglang::scheduler_DP1_TP0", "sglang::scheduler_DP0_TP0"]}
    with server(tmp_path, [*MODEL, "--dp", "2", "--port", str(port)], tree, listening(port)) as pid:
        s = found(pid)
        assert [(r.label, r.dp) for r in s.ranks] == [("DP0 TP0", 0), ("DP1 TP0", 1)]
        assert "dp-controller" in {h.role for h in s.helpers}
        assert resolve.resolve(f"pid:{s.ranks[1].pid}").pid == pid


def test_starting(tmp_path: Path, port: int) -> None:
    """No scheduler yet; then schedulers, but no port."""
    with server(tmp_path, [*MODEL, "--port", str(port)], {}) as pid:
        s = found(pid)
        assert (s.state, s.ranks, s.port) == ("starting", (), None)
        assert resolve.resolve(f":{port}").pid == pid
    with server(tmp_path, [*MODEL, "--port", str(port)], {"sglang::scheduler": []}) as pid:
        s = found(pid)
        assert (s.state, s.ranks[0].state) == ("starting", "starting")


def test_ranks_on_another_host(tmp_path: Path, port: int) -> None:
    args = [*MODEL, "--tp", "4", "--nnodes", "2", "--node-rank", "0", "--port", str(port)]
    tree = {"sglang::scheduler_TP0": [], "sglang::scheduler_TP1": []}
    with server(tmp_path, args, tree, listening(port)) as pid:
        s = found(pid)
        assert [(r.label, r.state, r.pid is None) for r in s.ranks] == [
            ("TP0", "running", False),
            ("TP1", "running", False),
            ("TP2", "elsewhere", True),
            ("TP3", "elsewhere", True),
        ]


def test_pipeline_ranks_on_another_host(tmp_path: Path, port: int) -> None:
    args = [*MODEL, "--tp", "2", "--pp", "2", "--nnodes", "2", "--port", str(port)]
    tree = {"sglang::scheduler_PP0_TP0": [], "sglang::scheduler_PP0_TP1": []}
    with server(tmp_path, args, tree, listening(port)) as pid:
        assert [r.label for r in found(pid).ranks if r.pid is None] == ["PP1 TP0", "PP1 TP1"]


def test_dp_attention_on_another_host(tmp_path: Path, port: int) -> None:
    args = [*MODEL, "--tp", "4", "--dp", "2", "--enable-dp-attention", "--nnodes", "2", "--port", str(port)]
    tree = {"sglang::scheduler_DP0_TP0": [], "sglang::scheduler_DP0_TP1": []}
    with server(tmp_path, args, tree, listening(port)) as pid:
        assert [r.label for r in found(pid).ranks if r.pid is None] == ["DP1 TP2", "DP1 TP3"]


def test_several_servers_and_none_chosen(tmp_path: Path, port: int) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        other = int(s.getsockname()[1])
    tree: dict[str, list[str]] = {"sglang::scheduler": []}
    with (
        server(tmp_path, [*MODEL, "--port", str(port)], tree, listening(port)) as one,
        server(tmp_path, [*MODEL, "--port", str(other)], tree, listening(other)) as two,
    ):
        assert {one, two} <= {s.pid for s in discovery.find_servers()}
        assert resolve.resolve(f":{port}").pid == one
        assert resolve.resolve(f"localhost:{other}").pid == two
        with pytest.raises(TargetError, match="SGLang servers run on this host") as caught:
            resolve.resolve(None)
        assert f"--attach :{port}" in caught.value.mend
        mine = [s for s in discovery.find_servers() if s.pid == one]
        assert resolve.resolve(None, lambda: mine).pid == one


def test_wrapper_with_the_same_command_line(tmp_path: Path, port: int) -> None:
    """A Python that only starts the real one (a supervisor) carries the same words: its child is the server."""
    wrapper = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    prefix = (sys.executable, "-c", wrapper)
    with server(tmp_path, [*MODEL, "--port", str(port)], {}, prefix=prefix) as pid:
        fits = [s.pid for s in discovery.find_servers() if s.args.port == port]
        assert fits == [pid]


def test_ipv6(tmp_path: Path, port: int) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    where = [("AF_INET6", "::1", port)]
    with server(tmp_path, [*MODEL, "--host", "::1", "--port", str(port)], {"sglang::scheduler": []}, where) as pid:
        s = found(pid)
        assert (s.host, s.port, s.url) == ("::1", port, f"http://[::1]:{port}")
        assert resolve.resolve(f"[::1]:{port}").pid == pid
        assert resolve.resolve(f":{port}").pid == pid


def test_other_network_and_pid_namespace(tmp_path: Path, port: int) -> None:
    """As in a container with a network of its own: found by the port that it has there."""
    up = 'ip link set lo up 2>/dev/null; exec "$0" "$@"'
    prefix = ("unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", up)
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare, to make namespaces")
    where = [("AF_INET", "0.0.0.0", port)]
    with server(tmp_path, [*MODEL, "--port", str(port)], {"sglang::scheduler": []}, where, prefix) as pid:
        s = found(pid)
        assert not s.own_network
        assert (s.state, s.port, s.name) == ("running", port, f"pid:{pid}")
        assert procfs.inner_pid(pid) != pid
        assert resolve.resolve(f":{port}").pid == pid
        assert resolve.resolve(f"pid:{pid}").pid == pid


def test_socket_in_another_network_answers_http(tmp_path: Path, port: int) -> None:
    """HTTP to a server in another network namespace goes through that namespace."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip, to make a network namespace")
    from sgtop_probes import http

    serve = f"ip link set lo up && exec {sys.executable} -m http.server {port} --bind 127.0.0.1 --directory {tmp_path}"
    (tmp_path / "server_info").write_text('{"tp_size": 1}')
    child = subprocess.Popen(["unshare", "--net", "sh", "-c", serve], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert child.stdout is not None
        end = time.monotonic() + 20
        while not any(s.port == port for s in sockets.listening(child.pid)):
            assert time.monotonic() < end
            time.sleep(0.05)
        base = f"http://127.0.0.1:{port}"
        with pytest.raises(http.HttpError, match="refused"):
            http.Client(base).server_info()
        assert http.Client(base, netns_pid=child.pid).server_info() == {"tp_size": 1}
    finally:
        child.kill()
        child.communicate()


# --- refusals ---------------------------------------------------------------------------------------


def refusal(target: str) -> TargetError:
    with pytest.raises(TargetError) as caught:
        resolve.resolve(target)
    return caught.value


def test_no_such_port(port: int) -> None:
    error = refusal(f":{port + 1 if port < 65535 else port - 1}")
    assert "nothing listens on port" in error.what
    assert error.exit_code == 3


def test_port_of_something_else(port: int) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        error = refusal(f":{s.getsockname()[1]}")
    assert "is not an SGLang server" in error.what
    assert f"(pid {os.getpid()}) listens there" in error.why
    assert error.exit_code == NOT_SGLANG


def test_another_host() -> None:
    error = refusal("192.0.2.7:30000")  # TEST-NET-1: nobody's address
    assert error.what == "192.0.2.7 is not this machine"
    assert error.mend == "ssh -t 192.0.2.7 sgtop --attach :30000"


def test_own_address_by_name(tmp_path: Path, port: int) -> None:
    with server(tmp_path, [*MODEL, "--port", str(port)], {"sglang::scheduler": []}, listening(port)) as pid:
        assert resolve.resolve(f"127.0.0.1:{port}").pid == pid
        assert resolve.resolve(f"http://localhost:{port}/").pid == pid


def test_name_that_nobody_knows() -> None:
    assert "cannot be resolved" in refusal("no-such-host.invalid:30000").what


def test_process_of_something_else() -> None:
    error = refusal(f"pid:{os.getpid()}")
    assert "no part of an SGLang server" in error.what
    assert error.exit_code == NOT_SGLANG
    assert "there is no process" in refusal("pid:4194305").what


@pytest.mark.parametrize("text", ["30000", "pid:", "pid:x", ":0", ":70000", "host", "a:b:c", ":"])
def test_not_a_target(text: str) -> None:
    error = refusal(text)
    assert error.exit_code == 2
    assert "pid:N" in error.mend


# --- containers -------------------------------------------------------------------------------------

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "path",
    [
        f"0::/system.slice/docker-{ID}.scope",
        f"12:cpu,cpuacct:/docker/{ID}",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods/besteffort/pod12/{ID}",
        f"0::/machine.slice/libpod-{ID}.scope/container",
    ],
)
def test_container_ids(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read", lambda name: path + "\n")
    assert procfs.container(1) == ID


def test_no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "read", lambda name: "0::/user.slice/user-1000.slice/session-2.scope\n")
    assert procfs.container(1) is None


def test_docker_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int) -> None:
    """A published port belongs to docker-proxy; the server behind it listens on another one, elsewhere."""
    line = f"/usr/bin/docker-proxy -host-port {port} -container-ip 172.17.0.2 -container-port 30000"
    inside = discovery.Server(
        pid=os.getpid(), port=30000, host="0.0.0.0", state="running", ranks=(), helpers=(), args=parse_launch([]),
        uid=0, container="abc", own_network=False,
    )  # fmt: skip
    monkeypatch.setattr(procfs, "arguments", lambda pid: line.split())
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        listens = int(s.getsockname()[1])
        monkeypatch.setattr(procfs, "arguments", lambda pid: line.replace(str(port), str(listens)).split())
        assert resolve.resolve(f":{listens}", lambda: [inside]) is inside


def test_addresses_of_proc_net_tcp() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    four = "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100\n"
    six = "   0: 00000000000000000000000001000000:7530 " + "0" * 32 + ":0000 0A 0:0 00:0 0 0 0 4712 1 0 100\n"
    mapped = "   0: 0000000000000000FFFF00000100007F:7530 " + "0" * 32 + ":0000 0A 0:0 00:0 0 0 0 4713 1 0 100\n"
    connected = four.replace(" 0A ", " 01 ")
    if sys.byteorder == "little":
        got = [(s.address, s.port, s.inode) for s in sockets.parse(head + four + six + mapped + connected)]
        assert got == [("127.0.0.1", 30000, 4711), ("::1", 30000, 4712), ("127.0.0.1", 30000, 4713)]
