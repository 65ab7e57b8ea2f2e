"""A small client of SGLang's HTTP server, for traffic and for checks."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

_SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class HttpError(RuntimeError):
    """The server answered with an error, or not at all."""


@dataclass(frozen=True)
class Answer:
    """The answer to one /generate."""

    text: str
    output_ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finish: str
    """``length``, ``stop`` or ``abort``."""


@dataclass(frozen=True)
class Series:
    """One sample of /metrics."""

    name: str
    labels: dict[str, str]
    value: float


class Client:
    """Talks to the server at ``url``; safe to use from many threads."""

    def __init__(self, url: str, timeout_s: float = 120.0) -> None:
        """``timeout_s`` is the longest silence of one request."""
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        # A proxy of the environment must not see requests to this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float | None = None) -> str:
        """The text of a 200 answer.

        Raises:
            HttpError: another status, no answer, or a broken connection.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=timeout_s or self.timeout_s) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as e:
            with e:
                raise HttpError(f"{method} {path}: status {e.code}: {e.read().decode(errors='replace')[:300]}") from e
        except (OSError, http.client.HTTPException) as e:
            raise HttpError(f"{method} {path}: {e or type(e).__name__}") from e

    def healthy(self) -> bool:
        """``/health`` answers 200 (it sends a request of one token through the scheduler)."""
        try:
            self.call("GET", "/health", timeout_s=30)
        except HttpError:
            return False
        return True

    def generate(
        self,
        prompt: str | list[int],
        tokens: int = 16,
        *,
        temperature: float = 0.0,
        ignore_eos: bool = True,
        rid: str | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """One request for exactly ``tokens`` tokens; for up to so many without ``ignore_eos``.

        Raises:
            HttpError: it was refused or broken off. (One that is aborted while it runs is answered with ``abort``.)
        """
        body: dict[str, Any] = {
            ("text" if isinstance(prompt, str) else "input_ids"): prompt,
            "sampling_params": {"max_new_tokens": tokens, "temperature": temperature, "ignore_eos": ignore_eos},
        }
        if rid is not None:
            body["rid"] = rid
        out = json.loads(self.call("POST", "/generate", body, timeout_s=timeout_s))
        meta = out["meta_info"]
        return Answer(
            text=out["text"],
            output_ids=tuple(out.get("output_ids") or ()),
            prompt_tokens=meta.get("prompt_tokens") or 0,  # an aborted one may have no counts
            completion_tokens=meta.get("completion_tokens") or 0,
            cached_tokens=meta.get("cached_tokens") or 0,
            finish=(meta.get("finish_reason") or {}).get("type", ""),
        )

    def abort(self, rid: str | None = None) -> None:
        """Abort the request ``rid``, or all of them."""
        self.call("POST", "/abort_request", {"abort_all": True} if rid is None else {"rid": rid})

    def flush_cache(self) -> None:
        """Empty the radix cache; only an idle server does it.

        Raises:
            HttpError: requests are running.
        """
        self.call("POST", "/flush_cache")

    def server_info(self) -> dict[str, Any]:
        """``/server_info`` (``/get_server_info`` on older versions)."""
        try:
            text = self.call("GET", "/server_info")
        except HttpError:
            text = self.call("GET", "/get_server_info")
        info: dict[str, Any] = json.loads(text)
        return info

    def metrics(self) -> list[Series]:
        """All samples of ``/metrics``."""
        out = []
        for line in self.call("GET", "/metrics").splitlines():
            if (found := _SERIES.match(line)) is not None:
                name, labels, value = found.groups()
                out.append(Series(name, dict(_LABEL.findall(labels or "")), float(value)))
        return out

    def total(self, name: str, **labels: str) -> float:
        """Sum of a series over all samples that have ``labels``; 0 where there is none yet."""
        return sum(
            s.value for s in self.metrics() if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
        )
