"""A server's own HTTP interface: what is known without an agent. Short time-outs, no proxies, no retries.

Names of paths and fields: ``srt/entrypoints/http_server.py``, ``managers/io_struct.py`` of SGLang 0.5.12 to 0.5.23.
A server behind ``--api-key`` wants the key: environment variable ``SGTOP_API_KEY``.
"""

from __future__ import annotations

import ctypes
import json
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .discovery import Server

KEY_VARIABLE = "SGTOP_API_KEY"
TIMEOUT_S = 2.0
MAX_BODY = 32 * 1024 * 1024
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


class HttpError(Exception):
    """The server did not give what was asked for; the text says what happened. ``status``: HTTP's, 0 without one."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Load:
    """One entry of /v1/loads or /get_load: a DP rank. None where this version does not say."""

    dp_rank: int
    running: int | None
    waiting: int | None
    tokens_used: int | None
    tokens_total: int | None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One line of /metrics."""

    labels: Mapping[str, str]
    value: float


class Client:
    """HTTP to one server. ``netns_pid``: a process whose network namespace it listens in, when that is not ours."""

    def __init__(
        self, base: str, *, netns_pid: int | None = None, api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        self.base, self.timeout = base.rstrip("/"), timeout
        self._netns_pid = netns_pid
        self._key = api_key if api_key is not None else os.environ.get(KEY_VARIABLE)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.base.startswith("https:"):
            # A local server's certificate is made out for its public name, if it is signed at all.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    @classmethod
    def of(cls, server: Server, timeout: float = TIMEOUT_S) -> Client | None:
        """A client of ``server``, None where it serves no HTTP (yet)."""
        if server.url is None:
            return None
        return cls(server.url, netns_pid=None if server.own_network else server.pid, timeout=timeout)

    # --- requests ---------------------------------------------------------------------------------

    def get(self, path: str) -> bytes:
        """Body of a GET.

        Raises:
            HttpError: refused, too slow, another status than 200, or a body over MAX_BODY.
        """
        if self._netns_pid is None:
            return self._get(path)
        return _in_network_of(self._netns_pid, lambda: self._get(path))

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self.base + path)
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        try:
            with self._opener.open(request, timeout=self.timeout) as answer:
                body: bytes = answer.read(MAX_BODY + 1)
        except urllib.error.HTTPError as e:
            e.close()
            hint = f": the server wants its API key in {KEY_VARIABLE}" if e.code in (401, 403) else ""
            raise HttpError(f"{path} answers {e.code} {e.reason}{hint}", e.code) from None
        except (OSError, ValueError) as e:
            reason = getattr(e, "reason", e)
            words = getattr(reason, "strerror", None) or str(reason) or type(e).__name__
            raise HttpError(f"{path}: {words}") from None
        if len(body) > MAX_BODY:
            raise HttpError(f"{path}: longer than {MAX_BODY} bytes")
        return body

    def get_json(self, path: str) -> Any:
        """Parsed body of a GET.

        Raises:
            HttpError: see ``get``, or no JSON.
        """
        try:
            return json.loads(self.get(path))
        except ValueError:
            raise HttpError(f"{path} does not answer in JSON") from None

    def _first(self, *paths: str) -> Any:
        for path in paths[:-1]:
            try:
                return self.get_json(path)
            except HttpError as e:
                if e.status != 404:
                    raise
        return self.get_json(paths[-1])

    # --- what sgtop reads -------------------------------------------------------------------------

    def server_info(self) -> dict[str, Any]:
        """Server arguments and state. It goes through the scheduler, which wakes an idle one.

        Raises:
            HttpError: see ``get``.
        """
        info = self._first("/server_info", "/get_server_info")
        if not isinstance(info, dict):
            raise HttpError("/server_info is not an object")
        return info

    def loads(self) -> list[Load]:
        """Requests and tokens a DP rank.

        Raises:
            HttpError: see ``get``.
        """
        answer = self._first("/v1/loads", "/get_load")
        entries = answer.get("loads", []) if isinstance(answer, dict) else answer
        if not isinstance(entries, list):
            raise HttpError("/v1/loads has an unknown form")
        return [parse_load(e, i) for i, e in enumerate(entries) if isinstance(e, dict)]

    def metrics(self) -> dict[str, list[Sample]]:
        """Name of a sample → its samples (a counter's is called ``…_total``); empty where metrics are off.

        Raises:
            HttpError: see ``get``, or a text that is not Prometheus'.
        """
        try:
            text = self.get("/metrics").decode("utf-8", "replace")
        except HttpError as e:
            if e.status == 404:
                return {}
            raise
        return parse_metrics(text)

    def poke(self) -> None:
        """Make an idle scheduler run Python once; what goes wrong does not matter."""
        try:
            self.server_info()
        except HttpError:
            pass


def parse_load(entry: Mapping[str, Any], index: int) -> Load:
    """One load entry, under the names of any version: ``num_reqs`` counts running and waiting requests together."""

    def number(*names: str) -> int | None:
        for name in names:
            value = entry.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return int(value)
        return None

    waiting, every = number("num_waiting_reqs"), number("num_reqs")
    running = number("num_running_reqs")
    if running is None and every is not None:
        running = every - (waiting or 0)
    return Load(
        dp_rank=number("dp_rank") if entry.get("dp_rank") is not None else index,  # type: ignore[arg-type]
        running=running,
        waiting=waiting,
        tokens_used=number("num_used_tokens", "num_tokens"),
        tokens_total=number("max_total_num_tokens"),
        extra=entry,
    )


def parse_metrics(text: str) -> dict[str, list[Sample]]:
    """Prometheus' text format → sample name → samples.

    Raises:
        HttpError: not that format.
    """
    from prometheus_client.parser import text_string_to_metric_families  # 30 ms that an attach does not need

    found: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(Sample(sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as e:
        raise HttpError(f"/metrics is not in Prometheus' text format: {e}") from None
    return found


def _in_network_of(pid: int, work: Callable[[], T]) -> T:
    """Run ``work`` on a thread of its own inside the network namespace of ``pid`` (CAP_SYS_ADMIN).

    Raises:
        HttpError: no permission; and what ``work`` raises.
    """
    result: list[T] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(fd, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(fd)
            result.append(work())
        except BaseException as e:
            trouble.append(e)

    thread = threading.Thread(target=run, name="sgtop-netns", daemon=True)
    thread.start()
    thread.join()
    if not trouble:
        return result[0]
    if isinstance(trouble[0], OSError):
        raise HttpError(
            f"the server listens in another network namespace: {trouble[0].strerror}; run sgtop as root on the host"
        ) from None
    raise trouble[0]
