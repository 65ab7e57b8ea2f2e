"""A server's HTTP interface: every form that SGLang's versions have, and every way in which it does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sgtop_probes import http

METRICS = """# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
# HELP sglang:realtime_tokens_total Tokens by mode.
# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{mode="decode",model_name="a \\"quoted\\" name"} 12.0
sglang:realtime_tokens_total{mode="prefill_compute",model_name="m"} 7.0
"""


@pytest.fixture
def serve() -> Iterator[tuple[str, dict[str, tuple[int, bytes]], list[str]]]:
    """(base address, path → (status, body), headers of authorization that came)."""
    pages: dict[str, tuple[int, bytes]] = {}
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization", ""))
            status, body = pages.get(self.path, (404, b""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not into the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", pages, keys
    server.shutdown()
    server.server_close()
    thread.join()


Serve = tuple[str, dict[str, tuple[int, bytes]], list[str]]


def test_server_info_under_either_name(serve: Serve) -> None:
    base, pages, _ = serve
    pages["/get_server_info"] = 200, b'{"tp_size": 2}'
    assert http.Client(base).server_info() == {"tp_size": 2}
    pages["/server_info"] = 200, b'{"tp_size": 4}'
    assert http.Client(base).server_info() == {"tp_size": 4}


def test_loads_of_every_version(serve: Serve) -> None:
    base, pages, _ = serve
    client = http.Client(base)
    pages["/get_load"] = 200, b'[{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 70}]'
    (load,) = client.loads()
    assert (load.running, load.waiting, load.tokens_used, load.tokens_total) == (3, 2, 70, None)
    pages["/v1/loads"] = (
        200,
        b'{"loads": [{"dp_rank": 1, "num_running_reqs": 4, "num_waiting_reqs": 0, "num_used_tokens": 9, '
        b'"max_total_num_tokens": 100}]}',
    )
    (load,) = client.loads()
    assert (load.dp_rank, load.running, load.waiting, load.tokens_used, load.tokens_total) == (1, 4, 0, 9, 100)


def test_what_a_version_does_not_say_is_not_known() -> None:
    load = http.parse_load({}, 3)
    assert (load.dp_rank, load.running, load.waiting, load.tokens_used) == (3, None, None, None)


def test_metrics(serve: Serve) -> None:
    base, pages, _ = serve
    assert http.Client(base).metrics() == {}  # 404: started without --enable-metrics
    pages["/metrics"] = 200, METRICS.encode()
    found = http.Client(base).metrics()
    assert found["sglang:num_running_reqs"] == [http.Sample({"model_name": "m", "tp_rank": "0"}, 3.0)]
    assert [s.value for s in found["sglang:realtime_tokens_total"]] == [12.0, 7.0]
    assert found["sglang:realtime_tokens_total"][0].labels["model_name"] == 'a "quoted" name'


def test_metrics_that_are_none() -> None:
    with pytest.raises(http.HttpError, match="not in Prometheus' text format"):
        http.parse_metrics("<html>{ not metrics</html>\n")


def test_api_key(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    base, pages, keys = serve
    pages["/server_info"] = 401, b""
    monkeypatch.delenv(http.KEY_VARIABLE, raising=False)
    with pytest.raises(http.HttpError, match=http.KEY_VARIABLE):
        http.Client(base).server_info()
    monkeypatch.setenv(http.KEY_VARIABLE, "secret")
    pages["/server_info"] = 200, b"{}"
    http.Client(base).server_info()
    assert keys == ["", "Bearer secret"]


def test_proxies_of_the_environment_are_not_asked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    base, pages, _ = serve
    pages["/server_info"] = 200, b"{}"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert http.Client(base).server_info() == {}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((500, b""), "answers 500"),
        ((200, b"<html>"), "does not answer in JSON"),
        ((200, b"[]"), "not an object"),
    ],
)
def test_other_answers(serve: Serve, answer: tuple[int, bytes], says: str) -> None:
    base, pages, _ = serve
    pages["/server_info"] = answer
    with pytest.raises(http.HttpError, match=says):
        http.Client(base).server_info()
    http.Client(base).poke()  # whatever it answers


def test_nobody_there() -> None:
    with pytest.raises(http.HttpError, match="refused"):
        http.Client("http://127.0.0.1:9", timeout=1).loads()


def test_too_slow() -> None:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        client = http.Client(f"http://127.0.0.1:{s.getsockname()[1]}", timeout=0.1)
        with pytest.raises(http.HttpError, match="timed out"):
            client.server_info()
