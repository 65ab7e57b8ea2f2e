"""Real SGLang servers as fixtures; a failed test shows the end of its server's log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.servers import Config, Pool
from tools.sglang_cpu.server import CpuServer

_pool = Pool()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a server, and more time than other tests: a start takes half a minute."""
    for item in items:
        if "tests/server/" in item.path.as_posix():
            item.add_marker("server")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the server's log to the report of a failure."""
    report = yield
    if report.failed and _pool.server is not None and item.get_closest_marker("server"):
        report.sections.append((f"log of the server on port {_pool.server.port}", _pool.server.log_tail(80)))
    return report


@pytest.fixture(scope="session")
def servers() -> Iterator[Pool]:
    """The pool, for tests that start, stop or kill a server of their own."""
    yield _pool
    _pool.close()


@pytest.fixture
def server(servers: Pool) -> CpuServer:
    """SGLang 0.5.20, one rank."""
    return servers.get(Config())


@pytest.fixture
def server_tp2(servers: Pool) -> CpuServer:
    """SGLang 0.5.20, two tensor-parallel ranks."""
    return servers.get(Config(tp=2))
