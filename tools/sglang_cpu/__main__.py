"""By hand: ``install [VERSION …]``, ``serve [flags]``, ``smoke URL``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tools.sglang_cpu.client import Client, HttpError
from tools.sglang_cpu.install import VERSIONS, InstallError, ensure, progress
from tools.sglang_cpu.server import CpuServer, ServerError, free_port


def install(versions: list[str]) -> None:
    """Install the given versions, or the one that is quickest here."""
    for done in [ensure(version) for version in versions] or [ensure()]:
        print(f"SGLang {done.version} ({done.flavour} build of torch): {done.venv}")


def serve(version: str | None, port: int | None, tp: int, flags: list[str]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    installed = ensure(version)
    chosen = port or free_port()
    log = Path(tempfile.gettempdir()) / f"sglang-{chosen}.log"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with CpuServer(installed, port=chosen, log=log, flags=flags, tp=tp) as server:
        server.wait_healthy(say=progress)
        print(f"SGLang {installed.version}: {server.url}, main process {server.pid}, log {log}", flush=True)
        while server.alive():
            time.sleep(0.2)
        print(server.log_tail(), file=sys.stderr)


def smoke(url: str) -> None:
    """A few real requests; says what came back."""
    client = Client(url)
    info = client.server_info()
    print(f"version {info.get('version')}, device {info.get('device')}, chunk {info.get('chunked_prefill_size')}")
    tag = str(time.time_ns())
    first, again = (client.generate(f"{tag} The quick brown fox jumps over the lazy dog.") for _ in range(2))
    if first.text != again.text or again.cached_tokens <= first.cached_tokens:
        raise ServerError(f"the same prompt twice: {first} then {again}")
    print(f"greedy answer repeats; cached tokens {first.cached_tokens} then {again.cached_tokens}")
    long = client.generate(f"{tag} " + "token batch request cache " * 300, 4)
    print(f"a prompt of {long.prompt_tokens} tokens: {long.completion_tokens} tokens back")
    print(f"{len({s.name for s in client.metrics() if s.name.startswith('sglang:')})} series names on /metrics")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.sglang_cpu", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("install", help="install SGLang into the cache")
    one.add_argument("versions", nargs="*", choices=[*VERSIONS, []], metavar="VERSION")
    two = commands.add_parser("serve", help="serve a tiny model in the foreground")
    two.add_argument("--version", choices=VERSIONS)
    two.add_argument("--port", type=int)
    two.add_argument("--tp", type=int, default=1)
    two.add_argument("flags", nargs="*", help="more flags for SGLang, after --")
    three = commands.add_parser("smoke", help="send a few requests")
    three.add_argument("url")
    given = parser.parse_args()
    try:
        if given.what == "install":
            install(given.versions)
        elif given.what == "serve":
            serve(given.version, given.port, given.tp, given.flags)
        else:
            smoke(given.url)
    except (InstallError, ServerError, HttpError) as e:
        print(f"{e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
