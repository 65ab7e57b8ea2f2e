"""DESIGN's "never" about CUPTI, held against the source and against the calls."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sgtop_agent.kernels import cupti
from sgtop_agent.kernels.session import Session

PACKAGE = Path(cupti.__file__).parent
ALLOWED = {
    "cuptiGetVersion", "cuptiGetTimestamp", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable",
    "cuptiActivityDisable", "cuptiActivityFlushAll", "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords",
    "cuptiActivitySetAttribute", "cuptiActivityGetAttribute",
}  # fmt: skip
"""Neither cuptiSubscribe nor cuptiFinalize, no timestamp callback, no cuptiActivityEnableRuntimeApi and the like."""


def names_used(path: Path) -> set[str]:
    """Attributes and whole strings of the source that name CUPTI functions; docstrings and comments do not count."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            out.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            out.add(node.value)
    return {name for name in out if name.startswith("cupti") and name != "cupti"}


def test_only_these_functions_of_cupti_are_named() -> None:
    used = set().union(*(names_used(path) for path in PACKAGE.glob("*.py")))
    assert "cuptiActivityEnable" in used
    assert used <= ALLOWED
    native = [path.read_text() for path in sorted((PACKAGE.parents[1] / "native").glob("*.[ch]"))]
    assert len(native) == 2
    for text in native:
        assert "#include <cu" not in text
        assert "Python.h" not in text


def test_enable_is_called_in_one_place_only() -> None:
    calls = [
        (path.name, node.lineno)
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "cuptiActivityEnable"
    ]
    assert len(calls) == 1, calls


class FakeLibrary:
    """Remembers what was enabled."""

    def __init__(self) -> None:
        self.enabled: list[int] = []

    def cuptiActivityEnable(self, kind: int) -> int:  # noqa: N802
        self.enabled.append(kind)
        return 0

    def cuptiActivityDisable(self, kind: int) -> int:  # noqa: N802
        return 0


def test_three_kinds_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    some: Any = SimpleNamespace(_lib=library, _check=cupti.Cupti._check)
    cupti.Cupti.enable(some)
    assert library.enabled == [1, 2, 10]
    for forbidden in (51, 3, 4, 5, 0, 12, 38):
        library.enabled.clear()
        monkeypatch.setattr(cupti, "KINDS", (forbidden,))
        with pytest.raises(cupti.CuptiError, match=f"kind {forbidden}"):
            cupti.Cupti.enable(some)
        assert library.enabled == []


def test_measured_strides_of_every_version_are_known() -> None:
    """cuptiGetVersion() → strides, against the table that the reader has."""
    from sgtop_core.kernels.layout import STRIDES

    for version, since in ((18, "12.0"), (24, "12.0"), (26, "12.8"), (28, "12.8"), (130001, "13.0"), (130101, "13.1"),
                           (130202, "13.1"), (130301, "13.3"), (130401, "13.4"), (130500, "13.4")):  # fmt: skip
        assert cupti.expected_strides(version) == STRIDES[since]


class FakeHelper:
    """Counters that a test sets."""

    request = complete = 0

    def __init__(self) -> None:
        self.now = dict.fromkeys(
            ("records", "untimed", "completed", "malformed", "lent", "on", "last_error", "epoch"), 0
        )

    def counters(self) -> dict[str, int]:
        return dict(self.now)

    def begin(self) -> int:
        return 1


def switched_on() -> tuple[Session, FakeHelper]:
    helper = FakeHelper()
    nothing = SimpleNamespace(
        register=lambda *_: None, buffers_are_zeroed=lambda _: None, enable=lambda: None, disable=lambda: None
    )
    session = Session(nothing, helper)  # type: ignore[arg-type]
    session.enable()
    helper.now.update(records=2_000, untimed=0, completed=9)
    return session, helper


def test_kernels_that_run_when_a_window_ends_do_not_stop_tracing() -> None:
    """A window of prefills on an H200: 263 of 2,429 records came back without times after it was switched off."""
    session, helper = switched_on()
    session.disable()
    helper.now.update(records=2_429, untimed=263)
    assert session.trouble(30, patience_ns=0) is None


@pytest.mark.parametrize("off", [False, True])
def test_records_without_times_while_tracing_stop_it(off: bool) -> None:
    session, helper = switched_on()
    helper.now.update(records=2_429, untimed=263)
    if off:
        session.disable()
    assert "263 of 2429" in (session.trouble(30, patience_ns=0) or "")


def test_whoever_sees_it_on_or_off_sees_the_times_of_that() -> None:
    """CUPTI's calls let other threads run: the agent's once noted the end of the window before this one."""
    seen: list[tuple[str, bool, bool]] = []

    def look(call: str) -> None:
        seen.append((call, session.on, session.t_off > session.t_on))

    nothing: Any = SimpleNamespace(
        register=lambda *_: None,
        buffers_are_zeroed=lambda _: None,
        enable=lambda: look("enable"),
        disable=lambda: look("disable"),
    )
    session = Session(nothing, FakeHelper())  # type: ignore[arg-type]
    for _ in range(2):
        session.enable()
        look("enabled")
        session.disable()
        look("disabled")
    assert seen[4:] == [
        ("enable", False, True),
        ("enabled", True, False),
        ("disable", True, False),
        ("disabled", False, True),
    ]
