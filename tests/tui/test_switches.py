"""The page that changes the server: it asks, says what it costs, does nothing before a y; the header counts down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from sgtop_core.model.figures import Figures
from sgtop_core.model.snapshot import Snapshot
from sgtop_core.model.switch_view import Flip, Switch, SwitchGroup
from sgtop_tui.app import SgtopApp
from sgtop_tui.screens.change_page import ChangePage
from textual.pilot import Pilot

from .app_driver import FakeSource, running, screen_text
from .scenes import decode_bound, straggler

GRAPH, PREFILL, RADIX = "cuda-graph-decode", "cuda-graph-prefill", "radix-cache"
COST = "about 90 MB of GPU memory for a batch of 64 run eager, 9000 MB are free; time to compile: unknown, seconds"


class Server(FakeSource):
    """A source that answers about switches as a session does, and remembers what it was asked to change."""

    def __init__(self, snapshot: Snapshot, **options: Any) -> None:
        super().__init__(snapshot, **options)
        self.flipped: dict[str, float | None] = {}
        self.reasons = {PREFILL: "no prefill graph was captured"}
        self.refuse = ""
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.broken = ""
        self.pending = False
        """What is asked for takes effect once this is false."""
        self.said: dict[str, Any] = {}
        """What an action returns."""

    def command(self, rank: str | None, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.broken:
            return {"ok": False, "error": self.broken}
        if op == "toggle.list":
            return {"ok": True, "result": {"TP0": {"switches": [self.row(n) for n in (GRAPH, PREFILL, RADIX)]}}}
        if op == "toggle.plan":
            return {"ok": True, "result": {"TP0": {"text": COST, "refuse": self.refuse}}}
        self.done.append((op, dict(args)))
        if op == "toggle":
            self.flipped[args["switch"]] = args["for_s"]
        elif op == "toggle.back":
            self.flipped.pop(args["switch"])
        elif op == "toggle.keep":
            self.flipped[args["switch"]] = None
        return {"ok": True, "result": self.said}

    def row(self, name: str) -> dict[str, Any]:
        off = name in self.flipped
        return {
            "name": name,
            "state": "pending" if self.pending else "off" if off else "on",
            "wanted": "off" if off else "on",
            "available": name not in self.reasons,
            "reason": self.reasons.get(name, ""),
            "owner": "pid 7 on host" if off else "",
            "left_s": self.flipped.get(name),
        }


async def until(pilot: Pilot[int], what: Callable[[], Any]) -> None:
    """Let workers finish."""
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end, pilot.app.screen
        await pilot.pause(0.02)


def page(app: SgtopApp) -> ChangePage:
    assert isinstance(app.screen, ChangePage)
    return app.screen


def notes(app: SgtopApp) -> list[str]:
    return [n.message for n in app._notifications]


def shows(app: SgtopApp, text: str) -> bool:
    return isinstance(app.screen, ChangePage) and text in " ".join(app.screen.text().split())


async def test_graphs_are_asked_for_told_what_it_costs_and_turned_off_with_y() -> None:
    server = Server(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("g")
        await until(pilot, lambda: shows(app, "cost:"))
        text = " ".join(page(app).text().split())
        assert "THIS CHANGES THE SERVER" in screen_text(app)
        assert COST in text
        assert "cuda-graph-prefill not available no prefill graph was captured" in text
        assert RADIX not in text
        assert server.done == []
        await pilot.press("y")
        await until(pilot, lambda: shows(app, "back in 60 s"))
        assert server.done == [("toggle", {"switch": GRAPH, "on": False, "for_s": 60.0})]
        await pilot.press("k")
        await until(pilot, lambda: shows(app, "kept until sgtop leaves"))
        await pilot.press("b")
        await until(pilot, lambda: GRAPH not in server.flipped)
        assert [op for op, _ in server.done] == ["toggle", "toggle.keep", "toggle.back"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [("y", "it takes effect at one step"), ("yk", "stays off until sgtop leaves"), ("yb", "goes back")],
)
async def test_what_was_asked_for_is_said_until_it_is_so(keys: str, words: str) -> None:
    """The switch itself says the rest; both together would contradict each other."""
    server = Server(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: shows(app, "cost:"))
        server.pending = True
        for i, key in enumerate(keys):
            await pilot.press(key)
            await until(pilot, lambda n=i: len(server.done) > n)
            if key != "b":
                await until(pilot, lambda: shows(app, "turned off by"))
        await until(pilot, lambda: shows(app, words))
        await pilot.pause(0.1)
        assert shows(app, words)
        server.pending = False
        await until(pilot, lambda: not shows(app, f"{RADIX}: "))


async def test_a_refusal_stays_and_a_failed_look_is_forgotten_with_the_next() -> None:
    server = Server(decode_bound(0))
    server.broken = "TP0 did not answer within 5 s"
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: shows(app, "did not answer"))
        server.broken = ""
        await until(pilot, lambda: shows(app, "cost:"))
        assert not shows(app, "did not answer")
        page(app)._said_now("busy: radix-cache is on its way back")
        page(app)._work(page(app)._look)
        await pilot.pause(0.2)
        assert shows(app, "busy: radix-cache")


@pytest.mark.parametrize("key", ["escape", "n", "q"])
async def test_without_a_y_nothing_happens(key: str) -> None:
    server = Server(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda: shows(app, "cost:"))
        await pilot.press("enter", "space", key)
        await pilot.pause()
        assert not isinstance(app.screen, ChangePage)
        assert app.is_running
        assert server.done == []


async def test_a_y_before_the_cost_is_known_or_where_it_is_too_much_does_nothing() -> None:
    server = Server(decode_bound(0))
    server.refuse = "up to 900 more KV tokens, 100 are free: not enough"
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("r", "y")
        await until(pilot, lambda: shows(app, "not enough"))
        await pilot.press("y")
        await pilot.pause(0.1)
        assert server.done == []


async def test_a_switch_that_is_not_available_cannot_be_turned() -> None:
    server = Server(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("g")
        await until(pilot, lambda: shows(app, "cost:"))
        await pilot.press("down", "y", "b", "k")
        await pilot.pause(0.1)
        assert server.done == []


async def test_what_the_agents_say_no_to_stands_on_the_page() -> None:
    server = Server(decode_bound(0))
    server.broken = "no agent in TP1: a group is switched as a whole or not at all"
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("g")
        await until(pilot, lambda: shows(app, "no agent in TP1"))


@pytest.mark.parametrize("key", ["g", "r", "a"])
async def test_read_only_opens_no_page(key: str) -> None:
    server = Server(decode_bound(0), readonly=True)
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        await until(pilot, lambda: any("read-only" in text for text in notes(app)))
        assert not isinstance(app.screen, ChangePage)


async def test_actions_take_enter_and_then_y() -> None:
    server = Server(decode_bound(0))
    async with running(decode_bound(0), (80, 24), source=server) as (app, pilot):
        await pilot.press("a", "y")
        await pilot.pause(0.05)
        assert server.done == []
        await pilot.press("enter", "y")
        await until(pilot, lambda: shows(app, "flush-cache: done"))
        assert server.done == [("action", {"action": "flush-cache"})]
        await pilot.press("down", "y")
        await pilot.pause(0.05)
        assert len(server.done) == 1, "another one is not armed"


@pytest.mark.parametrize(("near", "said"), [((3,), "on 1 CPU"), ((2, 3), "on 2 CPUs")])
async def test_a_pinned_rank_is_on_one_cpu_or_on_several_cpus(near: tuple[int, ...], said: str) -> None:
    base = straggler(0)
    slow = next(r for r in base.ranks if r.cpu is not None and r.cpu.place is not None)
    assert slow.cpu is not None
    assert slow.cpu.place is not None
    place = replace(slow.cpu.place, near_cpus=near)
    shot = replace(base, ranks=(replace(slow, cpu=replace(slow.cpu, place=place)),))
    server = Server(shot)
    async with running(shot, (80, 24), source=server) as (app, pilot):
        await pilot.press("a", "down", "down", "enter", "y")
        await until(pilot, lambda: server.done)
        await until(pilot, lambda: said in page(app).text())
        assert f"{said}s" not in page(app).text()


async def test_a_pin_that_became_less_says_so() -> None:
    base = straggler(0)
    slow = next(r for r in base.ranks if r.cpu is not None and r.cpu.place is not None)
    assert slow.cpu is not None
    assert slow.cpu.place is not None
    place = replace(slow.cpu.place, near_cpus=tuple(range(8)))
    shot = replace(base, ranks=(replace(slow, cpu=replace(slow.cpu, place=place)),))
    server = Server(shot)
    server.said = {slow.rank: {"cpus": [0, 1], "before": [0, 1]}}
    async with running(shot, (80, 24), source=server) as (app, pilot):
        await pilot.press("a", "down", "down", "enter", "y")
        await until(pilot, lambda: shows(app, "on 2 CPUs of the 8 near its GPU"))


def with_switch(snapshot: Snapshot, left_s: float | None, state: str = "off", flips: tuple[Flip, ...] = ()) -> Snapshot:
    off = Switch(RADIX, state, "off", True, "", 4711, "pid 7", left_s)
    on = Switch(GRAPH, "on", "on", True, "", None, "", None)
    return replace(snapshot, switches=(SwitchGroup("TP0", ("TP0", "TP1"), True, "", (on, off), flips),))


@pytest.mark.parametrize(("left", "said"), [(41.6, "radix-cache OFF 42 s"), (None, "radix-cache OFF kept")])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_header_counts_down(size: tuple[int, int], left: float | None, said: str) -> None:
    shot = with_switch(straggler(0), left)
    async with running(shot, size) as (app, _):
        assert said in screen_text(app).splitlines()[0]


async def test_pending_is_said() -> None:
    async with running(with_switch(decode_bound(0), 12.0, "pending"), (80, 24)) as (app, _):
        assert "radix-cache OFF pending 12 s" in screen_text(app).splitlines()[0]


async def test_a_flip_is_told_once_with_before_and_after() -> None:
    flip = Flip(
        GRAPH, "off", 900, 1, Figures(800, 5.0, 6.02, 166.0, 0.4, None), Figures(100, 4.0, 40.1, 25.0, 30.0, None)
    )
    young = replace(flip, after=replace(flip.after, seconds=0.5))
    server = Server(decode_bound(0))
    async with running(with_switch(decode_bound(0), 50.0, flips=(young,)), (120, 40), source=server) as (app, pilot):
        assert notes(app) == []
        for _ in range(2):
            app.feed(with_switch(decode_bound(0), 49.0, flips=(flip,)))
            await pilot.pause()
        await until(pilot, lambda: notes(app))
        (told,) = notes(app)
        assert told.startswith("cuda-graph-decode off: step 6.0 ms, 166 tok/s")
        await pilot.press("g")
        await until(pilot, lambda: shows(app, "before step 6.0 ms, 166 tok/s"))
        assert shows(app, "after step 40 ms, 25 tok/s")
