"""Events of sgtop's own probes as frames: any frozen dataclass in, the same dataclass out.

The agent's frames are recorded as they came. What sgtop finds out for itself (scheduling samples, GPU counters, HTTP
figures, states of the attachment) reaches the model as dataclasses; this puts one into a frame and makes it again,
by the type hints of its fields. A field of ``array[int]`` becomes a column, so that it is compressed like one::

    recorder.tap("sched", to_frame(batch), now)        # live
    model.sched(from_frame(frame, SchedBatch))         # replay

A field that the recording lacks takes its default, one that the class no longer has is dropped: recordings outlive
versions.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, Union

from sgtop_agent import wire

T = TypeVar("T")
KIND = "probe"
"""``k`` of such a frame; ``e`` is the class's name."""


def to_frame(event: Any) -> wire.Frame:
    """A dataclass instance as a frame of the wire's form."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    columns = {k: v for k, v in fields.items() if isinstance(v, array)}
    lengths = {len(v) for v in columns.values()}
    if len(lengths) != 1:
        columns = {}
    rest = {k: plain(v) for k, v in fields.items() if k not in columns}
    frame: wire.Frame = {"k": KIND, "e": type(event).__name__, "x": rest}
    if columns:
        frame["n"] = lengths.pop()
        frame["c"] = {k: memoryview(wire.column(v)) for k, v in columns.items()}
    return frame


def plain(v: Any) -> Any:
    """``v`` as maps, lists and values; a mapping becomes pairs, as its keys may be numbers."""
    if dataclasses.is_dataclass(v) and not isinstance(v, type):
        return {f.name: plain(getattr(v, f.name)) for f in dataclasses.fields(v)}
    if isinstance(v, Mapping):
        return [[plain(k), plain(x)] for k, x in v.items()]
    if isinstance(v, (list, tuple, set, frozenset, array)):
        return [plain(x) for x in v]
    return v


def from_frame(frame: Mapping[str, Any], cls: type[T]) -> T:
    """The dataclass that :func:`to_frame` was given.

    Raises:
        WireError: a frame of another class, or fields that do not fit it.
    """
    if frame.get("k") != KIND or frame.get("e") != cls.__name__:
        raise wire.WireError(f"a frame of {frame.get('e')}, not of {cls.__name__}")
    try:
        values = dict(frame["x"])
        for name, raw in frame.get("c", {}).items():
            a = array("q")
            a.frombytes(bytes(raw))
            values[name] = a
        return typing.cast("T", build(values, cls))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise wire.WireError(f"a {cls.__name__} that cannot be read: {e}") from e


class _Array(Generic[T]):
    """Stands for ``array`` in type hints, which cannot be subscripted at run time before Python 3.12."""


@functools.lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns={"array": _Array})


def build(values: Mapping[str, Any], cls: type) -> Any:
    """An instance of the dataclass ``cls`` from the plain values of its fields; what is not a field is dropped."""
    hints = _hints(cls)
    names = [f.name for f in dataclasses.fields(cls) if f.name in values]
    return cls(**{n: _typed(values[n], hints[n]) for n in names})


def _typed(v: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if v is None or hint is Any:
        return v
    if origin in (Union, types.UnionType):
        return _typed(v, next(a for a in args if a is not type(None)))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(v, hint)
    if origin is _Array or hint is _Array:
        return v if isinstance(v, array) else array("q", v)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_typed(k, args[0]): _typed(x, args[1]) for k, x in v}
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_typed(x, args[0]) for x in v)
        return tuple(_typed(x, a) for x, a in zip(v, args, strict=True))
    if isinstance(origin, type) and issubclass(origin, (Sequence, set, frozenset)):
        made = [_typed(x, args[0]) for x in v]
        return made if origin in (list, Sequence) or not issubclass(origin, (set, frozenset)) else origin(made)
    return v
