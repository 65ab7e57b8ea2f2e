"""The exporter's HTTP server: prometheus-client's own, on the address that was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_wsgi_server

from sgtop_core.model.snapshot import Snapshot

from .collector import SgtopCollector
from .totals import Totals


class ListenError(Exception):
    """The address cannot be listened on; ``what``, ``why``, ``mend`` say so in words."""

    def __init__(self, what: str, why: str, mend: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.mend = what, why, mend


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT``, ``[V6]:PORT`` or ``:PORT`` (this machine only).

    Raises:
        ListenError: anything else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ListenError(f"{text!r} is not an address", "it needs a port", "--listen 127.0.0.1:9400")
    return host.strip("[]") or "127.0.0.1", int(port)


class Exporter:
    """Serves ``/metrics``, OpenMetrics or the older text format as the scraper asks.

    Raises:
        ListenError: the address is taken or not of this machine.
    """

    def __init__(self, address: str, snapshot: Callable[[], Snapshot | None], totals: Totals) -> None:
        host, port = parse_address(address)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(SgtopCollector(snapshot, totals))
        try:
            self._server: WSGIServer
            self._thread: threading.Thread
            self._server, self._thread = start_wsgi_server(port, host, registry)
        except OSError as e:
            raise ListenError(f"cannot listen on {address}", e.strerror or str(e), "another --listen HOST:PORT") from e
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
