"""Attaching and detaching two hundred times during traffic: nobody notices, and nothing stays."""

from __future__ import annotations

import sys
import threading

from sgtop_probes.resolve import resolve

from tests.server.cycles import cycle
from tests.server.servers import Config, Pool
from tests.server.traces import from_inside
from tests.server.traffic import Background, everything, ids, serial

WATCHED = Config(witness=True)


def test_two_hundred_cycles_during_traffic_leave_no_trace(servers: Pool) -> None:
    server = servers.get(WATCHED)
    (pid,) = server.schedulers()
    ranks = resolve(f":{server.port}").ranks
    everything(server.client)  # what SGLang makes on first use is there
    never = from_inside(pid, servers.folder)
    with Background(server.client, workers=2) as traffic:
        for _ in range(20):
            cycle(ranks)
        twenty = from_inside(pid, servers.folder)
        for _ in range(180):
            cycle(ranks)
    after = from_inside(pid, servers.folder)

    assert traffic.failures == []
    assert traffic.answered > 20
    assert after.grown_since(twenty) == []
    # Against a scheduler that never had an agent: nothing but modules of the standard library may be new.
    foreign = {name for name in set(after.modules) - set(never.modules) if name.split(".")[0] not in STANDARD}
    assert foreign == set()
    for field in ("threads", "python_threads", "fds", "attributes", "finders", "path_hooks", "gc_callbacks"):
        assert getattr(after, field) == getattr(never, field), field
    new_files = [name for name in set(after.named_maps) - set(never.named_maps) if "/lib-dynload/" not in name]
    assert new_files == []


STANDARD = sys.stdlib_module_names


def test_serial_answers_are_the_same_with_and_without(servers: Pool) -> None:
    server = servers.get(WATCHED)
    ranks = resolve(f":{server.port}").ranks
    prompts = [ids(20 + 7 * i, 800 + i) for i in range(12)]

    def answers() -> list[tuple[int, ...]]:
        server.client.flush_cache()
        return serial(server.client, prompts, tokens=60)

    control = answers()
    assert answers() == control
    stop = threading.Event()
    done: list[int] = []
    problems: list[BaseException] = []

    def attach_all_the_time() -> None:
        try:
            while not stop.is_set():
                cycle(ranks, events=False)
                done.append(1)
        except BaseException as e:
            problems.append(e)

    thread = threading.Thread(target=attach_all_the_time)
    thread.start()
    try:
        watched = [answers() for _ in range(4)]
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert len(done) >= 5
    assert watched == [control] * 4
    assert answers() == control
