"""``sgtop toggle``, ``ab`` and ``action`` over a group of this process: what they say is true, and they take back what
is theirs and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sgtop_core.switches import ab as comparing
from sgtop_tui.cli import ab, action, exit_codes, main, toggle
from sgtop_tui.cli.action import pinned
from sgtop_tui.cli.signals import Signals

from tests.switches.rig import Live, Server

GRAPH = "cuda-graph-decode"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """The server that every command finds."""
    before = {n: signal.getsignal(n) for n in SIGNALS}
    with Live(Server(tp=1)) as made:
        for module in (toggle, ab, action):
            monkeypatch.setattr(module, "open_session", lambda *_, **__: made)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
        yield made
        while timers:
            timers.pop().join()
        for number, handler in before.items():  # a command holds them to the end of its process
            signal.signal(number, handler)


timers: list[threading.Timer] = []


def later(seconds: float, what: Callable[[], Any]) -> None:
    timers.append(threading.Timer(seconds, what))
    timers[-1].start()


def signalled(*numbers: int, every: float = 0.0) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)
        time.sleep(every)


def events(out: str) -> list[str]:
    return [json.loads(line)["event"] for line in out.splitlines()]


def texts(out: str) -> list[str]:
    return [json.loads(line)["text"] for line in out.splitlines()]


def off(*more: str) -> int:
    return main(["toggle", GRAPH, "off", "--yes", "--json", *more])


# --- whose flip it is -------------------------------------------------------------------------------------------------


def test_ab_leaves_what_another_client_turned_off(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert live.elsewhere(GRAPH, off=True)["ok"]
    assert main(["ab", "--switch", GRAPH, "--rounds", "3", "--each", "1s"]) == exit_codes.REFUSED
    said = capsys.readouterr().err
    assert f"TP0: {GRAPH} is off already, by pid 7 on host" in said
    assert "why: nothing was changed" in said
    assert f"sgtop toggle {GRAPH} on" in said
    assert live.state(GRAPH)["wanted"] == "off"


def test_ab_leaves_what_another_client_turned_off_while_it_measured(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    live.before = lambda op: live.elsewhere(GRAPH, off=True) and None if op == "toggle" else None
    assert main(["ab", "--switch", GRAPH, "--rounds", "3", "--each", "200ms"]) == exit_codes.REFUSED
    assert "why: nothing was changed" in capsys.readouterr().err
    assert live.state(GRAPH)["wanted"] == "off"


def test_ab_that_was_taken_back_in_the_middle_compares_nothing(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Else a stretch with the switch on would count as off."""
    live.before = lambda op: live.elsewhere(GRAPH, off=False) and None if op == "toggle.back" else None
    assert main(["ab", "--switch", GRAPH, "--rounds", "3", "--each", "200ms"]) == exit_codes.REFUSED
    said = capsys.readouterr().err
    assert f"{GRAPH} went back on in the middle: asked by pid 7 on host" in said
    assert f"why: {GRAPH} is on again" in said


def test_ab_flips_compares_and_is_back(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", "--switch", GRAPH, "--rounds", "3", "--each", "200ms"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "not the ratio of the two columns" in out
    assert out.count("\n") >= 7
    assert live.state(GRAPH)["state"] == "on"


def test_the_end_of_a_toggle_leaves_a_flip_that_came_after_it(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Its time was over; before it has tidied up, somebody else turns the switch off."""

    def before(op: str) -> None:
        if op == "toggle.back":
            end = time.monotonic() + 5
            while not live.elsewhere(GRAPH, off=True)["ok"]:  # busy, while it is on its way back
                assert time.monotonic() < end
                time.sleep(0.01)

    live.before = before
    assert off("--for", "300ms") == exit_codes.OK
    assert live.state(GRAPH)["wanted"] == "off"
    assert live.state(GRAPH)["owner"] == "pid 7 on host"
    assert texts(capsys.readouterr().out)[-1].endswith("it is off for pid 7 on host")


def test_a_person_turns_on_what_somebody_else_turned_off(live: Live) -> None:
    assert live.elsewhere(GRAPH, off=True)["ok"]
    assert main(["toggle", GRAPH, "on"]) == exit_codes.OK
    assert live.state(GRAPH)["state"] == "on"


def test_what_another_client_took_back_is_said(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    later(0.8, lambda: live.elsewhere(GRAPH, off=False))
    assert off("--for", "20s") == exit_codes.OK
    assert texts(capsys.readouterr().out)[-1] == f"{GRAPH} is on again: asked by pid 7 on host"


# --- asking first -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["toggle", GRAPH, "off"], ["action", "freeze-gc"], ["action", "flush-cache"]])
@pytest.mark.parametrize("terminals", [(False, False), (True, False), (False, True)])
def test_without_a_terminal_to_ask_on_yes_must_be_said(
    command: list[str],
    terminals: tuple[bool, bool],
    live: Live,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminals[0], raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminals[1], raising=False)
    assert main(command) == exit_codes.USAGE
    assert f"fix: sgtop {' '.join(command)} --yes" in capsys.readouterr().err
    assert live.asked == []
    assert live.server.web is not None
    assert live.server.web.asked == []


@pytest.mark.parametrize("command", [["toggle", GRAPH, "off", "--for", "300ms"], ["action", "freeze-gc"]])
@pytest.mark.parametrize(("answer", "code"), [("", 8), ("n", 8), ("y", 0)])
def test_on_a_terminal_it_asks(
    command: list[str], answer: str, code: int, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: f"{answer}\n", raising=False)
    assert main(command) == code
    assert bool({op for op, _ in live.asked} & {"toggle", "action"}) == (answer == "y")


# --- what is said of a flip -------------------------------------------------------------------------------------------


def test_a_flip_that_is_over_before_the_first_look_was_off(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    live.step_s = 0.001
    for _ in range(3):
        assert off("--for", "100ms") == exit_codes.OK
        out = capsys.readouterr().out
        assert events(out) == ["plan", "off", "on"]
        assert "None" not in out
        (live.server.agents["TP0"].clients).append(live.server.peers["TP0"])  # the next command's connection


def test_a_flip_is_off_since_a_step_however_soon_it_is_looked_at(live: Live) -> None:
    """The agent's own clock may not have noticed the leader's store yet."""
    server = Server(tp=1)
    leader = server.agents["TP0"]
    peer = server.peers["TP0"]
    leader.call(peer, "switch.open")
    leader.call(peer, "switch.flip", switch=GRAPH, on=False)
    rows = []
    for _ in range(8):
        leader.scheduler.get_next_batch_to_run()
        leader.scheduler.forward_ct += 1
        state = leader.control.state()
        rows += [s for s in state["switches"] if s["state"] == "off"]
    assert rows
    assert {s["step"] for s in rows} == {5}
    for fd in peer.handed:
        os.close(fd)
    server.end()


def test_on_an_idle_server_it_says_that_no_steps_were_made(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    live.idle = True
    assert off("--for", "400ms") == exit_codes.NOT_READY
    said = capsys.readouterr()
    assert events(said.out) == ["plan"]
    assert f"{GRAPH} was not switched off" in said.err
    assert "the server made no steps in that time" in said.err
    assert "while requests run" in said.err


def test_a_flip_that_is_pending_for_too_long_is_called_off(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live.idle = True
    monkeypatch.setattr(toggle, "APPLY_S", 0.5)
    assert off("--for", "30s") == exit_codes.NOT_READY
    assert "the server made no steps in that time" in capsys.readouterr().err
    assert live.state(GRAPH)["wanted"] == "on", "before the session ended"
    assert ("toggle.back", {"switch": GRAPH, "mine": True}) in live.asked


def test_a_flip_that_ends_while_it_is_pending_is_not_on_again(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    live.idle = True
    later(0.5, lambda: signalled(signal.SIGINT))
    assert off("--for", "30s") == exit_codes.OK
    out = capsys.readouterr().out
    assert events(out) == ["plan", "nothing"]
    assert texts(out)[-1] == f"{GRAPH} was called off before it took effect"


def test_why_the_server_called_it_off_is_said(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    live.idle = True
    later(0.5, lambda: live.elsewhere(GRAPH, off=False))
    assert off("--for", "30s") == exit_codes.REFUSED
    assert "why: asked by pid 7 on host" in capsys.readouterr().err


def test_a_client_that_was_stopped_goes_on_watching(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Its wait for an answer was over when it was continued; the server had answered."""
    live.before = _once("toggle.list", lambda: live.unanswered.append("switch.list"))
    assert off("--for", "600ms") == exit_codes.OK
    assert events(capsys.readouterr().out) == ["plan", "off", "on"]


def _once(op: str, what: Callable[[], Any]) -> Callable[[str], None]:
    """Before the first ``op``."""
    done: list[str] = []

    def before(asked: str) -> None:
        if asked == op and not done:
            done.append(op)
            what()

    return before


def test_a_client_that_was_stopped_for_longer_says_that_it_was_dropped(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had read nothing for too long, so its connection was closed and its flip went back; then it connects anew."""

    def drop() -> None:
        live.stop()
        live.server.missing.add("TP0")
        later(0.4, again)

    def again() -> None:
        live.server.agents["TP0"].clients.append(live.server.peers["TP0"])
        live.server.missing.clear()

    later(0.6, drop)
    assert off("--for", "30s") == exit_codes.OK
    said = texts(capsys.readouterr().out)[-1]
    assert said.startswith(f"{GRAPH} is on again: pid {os.getpid()} ")
    assert said.endswith(" has gone")


def test_of_agents_that_do_not_answer_only_what_is_known_is_said(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toggle, "AGAIN_S", 0.3)
    looks: list[str] = []

    def before(op: str) -> None:
        if op == "toggle.list":
            looks.append(op)
            if len(looks) > 3:
                live.unanswered.append("switch.list")

    live.before = before
    assert off("--for", "30s") == exit_codes.NOT_READY
    said = capsys.readouterr().err
    assert "sgtop: TP0 did not answer within 5 s" in said
    assert f"{GRAPH} was off since step " in said
    assert "turns it back on by itself" in said
    assert "nothing was changed" not in said


def test_a_flip_that_was_not_answered_is_asked_back(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    live.unanswered.append("switch.flip")
    assert off() == exit_codes.REFUSED
    said = capsys.readouterr().err
    assert "sgtop: TP0 did not answer" in said
    assert "why: nothing was changed" in said
    assert [op for op, _ in live.asked][-1] == "toggle.back"


@pytest.mark.parametrize("command", ["toggle", "ab"])
def test_a_server_that_is_killed_has_gone_and_no_more_is_made_of_it(
    command: str, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    later(0.7, lambda: setattr(live, "killed", True))
    ran = ["ab", "--switch", GRAPH, "--rounds", "9", "--each", "200ms"]
    assert (off("--for", "30s") if command == "toggle" else main(ran)) == exit_codes.SERVER_GONE
    said = capsys.readouterr().err
    assert "sgtop: the server has gone\n  why: what was changed in it went with it\n" in said
    live.killed = False


@pytest.mark.parametrize("answered", [True, False])
def test_what_is_kept_has_no_timer_and_what_could_not_be_kept_says_so(
    answered: bool, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    if not answered:
        live.unanswered.append("switch.keep")
    later(1.0, lambda: signalled(signal.SIGINT))
    assert off("--keep", "--for", "400ms") == exit_codes.OK
    out = capsys.readouterr().out
    assert events(out) == (["plan", "off", "on"] if answered else ["plan", "timed", "off", "on"])
    if answered:
        assert ("toggle.back", {"switch": GRAPH, "mine": True}) in live.asked
    else:
        assert "not kept: TP0 did not answer within 5 s; it goes back after 0.4 s" in texts(out)


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), (signal.SIGINT,), (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)])
@pytest.mark.parametrize("every", [0.0, 0.02])
def test_more_signals_change_nothing_about_the_way_back(
    more: tuple[int, ...], every: float, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    later(0.6, lambda: signalled(signal.SIGINT, *more, every=every))
    assert off("--for", "30s") == exit_codes.OK
    said = capsys.readouterr()
    assert events(said.out) == ["plan", "off", "on"]
    assert "mistake" not in said.err
    assert live.state(GRAPH)["state"] == "on"


@pytest.mark.parametrize("moment", ["toggle", "toggle.list", "toggle.back", "toggle.plan"])
def test_a_signal_at_any_moment_leaves_the_switch_on(
    moment: str, live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    live.before = _once(moment, lambda: signalled(signal.SIGINT, signal.SIGTERM))
    code = off("--for", "600ms")
    assert code == (exit_codes.INTERRUPTED if moment == "toggle.plan" else exit_codes.OK)
    assert "mistake" not in capsys.readouterr().err
    assert live.state(GRAPH)["state"] == "on"


@pytest.mark.parametrize("after", [0.3, 0.6, 0.9])
def test_ab_that_is_broken_off_is_back(after: float, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    later(after, lambda: signalled(signal.SIGINT, signal.SIGTERM, every=0.01))
    assert main(["ab", "--switch", GRAPH, "--rounds", "9", "--each", "300ms"]) == exit_codes.INTERRUPTED
    assert "sgtop: broken off, detached\n" in capsys.readouterr().err
    assert live.state(GRAPH)["state"] == "on"


def test_a_signal_ends_a_wait_at_once(live: Live) -> None:
    signals = Signals()
    signals.hold()
    later(0.1, lambda: signalled(signal.SIGTERM))
    begin = time.monotonic()
    signals.sleep(20)
    assert time.monotonic() - begin < 5
    assert signals.came
    with pytest.raises(KeyboardInterrupt):
        signals.check()


def test_a_signal_after_the_end_changes_nothing(live: Live) -> None:
    later(1.5, lambda: signalled(*SIGNALS))
    assert off("--for", "300ms") == exit_codes.OK
    while timers:
        timers.pop().join()


# --- actions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pin", "0", "--rank", "TP9"), ["there is no rank 'TP9'", "why: there is TP0", "pin 0 --rank 'TP0'"]),
        (("pin",), ["pin: to which CPUs?", "fix: sgtop action pin 0-3,8"]),
        (("pin", "x"), ["'x' is no list of CPUs"]),
        (("pin", "3-1"), ["'3-1' is no list of CPUs"]),
        (("priority",), ["priority: which nice value?"]),
        (("priority", "99"), ["'99' is no nice value", "from -20"]),
        (("freeze-gc", "7"), ["freeze-gc takes no value"]),
        (("flush-cache", "--rank", "TP0"), ["flush-cache takes no --rank"]),
        (("flush-cache", "--for", "3s"), ["flush-cache takes no --for"]),
        (("warp",), ["there is no action 'warp'"]),
    ],
)
def test_an_action_that_cannot_be_is_a_wrong_command_line(
    arguments: tuple[str, ...], said: list[str], live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["action", *arguments]) == exit_codes.USAGE
    err = capsys.readouterr().err
    for words in said:
        assert words in err
    assert "None" not in err
    assert live.asked == []


def test_a_pin_says_what_it_became() -> None:
    assert pinned("TP0", {"cpus": [0, 1], "before": [0, 1]}, range(8)) == (
        "TP0: on CPUs 0-1, not 2-7: the server's process may not use them (before: 0-1)"
    )
    assert pinned("TP0", {"cpus": [0, 2], "before": [0, 1, 2]}, [0, 2]) == "TP0: on CPUs 0,2 (before: 0-2)"


def test_a_rank_that_is_not_there_is_named_once_with_those_that_are() -> None:
    server = Server(tp=2)
    live = Live(server)
    reply = live.switches.command("action", {"action": "pin", "cpus": [0], "rank": "TP9"})
    assert reply["error"] == "there is no rank 'TP9'; there are TP0, TP1"
    server.refuse["TP0", "action.pin"] = "TP0 has no agent"
    reply = live.switches.command("action", {"action": "pin", "cpus": [0], "rank": "TP0"})
    assert reply["error"] == "TP0 has no agent"
    server.end()


def test_the_ratio_of_the_table_is_explained_where_it_stands() -> None:
    """The median of ratios is not the ratio of medians; the table shows both."""
    figures = [comparing.Figures(100, 1.0, ms, 1000 / ms, 0.1, None) for ms in (1.0, 1.0, 2.0, 2.0)]
    rows = comparing.compare(figures, figures[1:])
    text = comparing.table(comparing.Result(GRAPH, 3, 1.0, rows, (), ()))
    assert comparing.RATIO in text.splitlines()
