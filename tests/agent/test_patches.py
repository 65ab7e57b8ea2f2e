"""Patching instances and leaving no trace on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sgtop_agent.patches import Fail, Patches


class Thing:
    def work(self, x: int) -> int:
        return x + 1


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 5

    def work(self, x: int) -> int:
        return x + self.n


class Holder:
    def __init__(self) -> None:
        self.part = Slotted()


def counting(seen: list[Any]) -> Callable[[Any, Fail], Any]:
    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            seen.append(args)
            return original(*args, **kwargs)

        return hook

    return make


def test_patch_and_undo_leave_the_instance_as_it_was() -> None:
    thing, seen, patches = Thing(), [], Patches()  # type: ignore[var-annotated]
    assert patches.method("h", thing, "work", counting(seen))
    assert thing.work(1) == 2
    assert seen == [(1,)]
    patches.undo()
    assert vars(thing) == {}
    assert thing.work(1) == 2
    assert seen == [(1,)]


def test_an_attribute_that_was_there_before_comes_back() -> None:
    thing, seen, patches = Thing(), [], Patches()  # type: ignore[var-annotated]
    mine: Callable[[int], int] = lambda x: x + 10  # noqa: E731
    thing.work = mine  # type: ignore[method-assign]
    patches.method("h", thing, "work", counting(seen))
    assert thing.work(1) == 11
    patches.undo()
    assert vars(thing) == {"work": mine}


def test_what_somebody_else_wrapped_since_is_left_alone() -> None:
    thing, seen, patches = Thing(), [], Patches()  # type: ignore[var-annotated]
    patches.method("h", thing, "work", counting(seen))
    inner = thing.work
    theirs: Callable[[int], int] = lambda x: inner(x) * 2  # noqa: E731
    thing.work = theirs  # type: ignore[method-assign]
    patches.undo()
    assert vars(thing) == {"work": theirs}
    assert patches.foreign == ["h"]
    assert thing.work(1) == 4


def test_an_object_with_slots_is_stood_in_for_and_put_back() -> None:
    holder, seen, patches = Holder(), [], Patches()  # type: ignore[var-annotated]
    part = holder.part
    assert patches.method("h", holder, "part.work", counting(seen))
    assert isinstance(holder.part, Slotted)
    assert holder.part.work(1) == 6
    holder.part.n = 7
    assert part.n == 7
    assert holder.part.work(1) == 8
    assert len(seen) == 2
    patches.undo()
    assert holder.part is part


def test_two_methods_of_one_slotted_object_share_the_proxy() -> None:
    class Two(Slotted):
        __slots__ = ()

        def more(self) -> int:
            return self.n

    holder, seen, patches = Holder(), [], Patches()  # type: ignore[var-annotated]
    holder.part = part = Two()
    assert patches.method("a", holder, "part.work", counting(seen))
    assert patches.method("b", holder, "part.more", counting(seen))
    holder.part.work(1)
    assert holder.part.more() == 5  # type: ignore[attr-defined]
    assert len(seen) == 2
    patches.undo()
    assert holder.part is part


def test_a_missing_method_is_no_hook() -> None:
    patches = Patches()
    assert not patches.method("h", Thing(), "nothing", counting([]))
    assert not patches.method("h", Thing(), "nothing.work", counting([]))
    assert patches.off == {}


def test_a_failing_hook_switches_itself_off_and_the_call_goes_through() -> None:
    thing, patches = Thing(), Patches()

    def make(original: Any, fail: Fail) -> Any:
        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                raise ZeroDivisionError("ours")
            except BaseException as error:
                fail(error)
            return original(*args, **kwargs)

        return hook

    patches.method("h", thing, "work", make)
    assert thing.work(1) == 2
    assert vars(thing) == {}
    assert patches.off == {"h": "ZeroDivisionError: ours"}
    patches.undo()


def test_an_interrupt_in_a_hook_is_not_swallowed() -> None:
    patches = Patches()
    with pytest.raises(KeyboardInterrupt):
        patches.fail("h", KeyboardInterrupt())
    assert patches.off == {}
