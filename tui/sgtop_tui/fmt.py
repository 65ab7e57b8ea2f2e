"""Numbers as words: a value with its unit in a known width, and ``–`` for what is not known.

Nothing here guesses: ``None`` in, ``–`` out. Three figures are enough for an eye; more of them only flicker.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "–"
SPARKS = "▁▂▃▄▅▆▇█"
BLOCKS = " ▏▎▍▌▋▊▉█"


def count(value: float | None) -> str:
    """A plain number: ``67``, ``1.9 k``, ``3.2 M``."""
    if value is None:
        return UNKNOWN
    for limit, unit in ((999.5e6, "G"), (999.5e3, "M"), (999.5, "k")):
        if abs(value) >= limit:
            scaled = value / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 99.95 else f"{scaled:.1f} {unit}"
    if value == int(value) or abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}"


def counted(value: float | None, one: str, many: str = "") -> str:
    """A number with its noun: ``1 CPU``, ``4 CPUs``, ``1.9 k launches``; ``many`` where it is not ``one`` and an s."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def ms(value: float | None) -> str:
    """Milliseconds with the unit that suits: ``840 µs``, ``24 ms``, ``1.4 s``."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 999.5:
        return seconds(value / 1e3)
    if abs(value) >= 9.95:
        return f"{value:.0f} ms"
    if abs(value) >= 0.9995:
        return f"{value:.1f} ms"
    return f"{value * 1e3:.0f} µs"


def ms_bare(value: float | None) -> str:
    """Milliseconds without the unit, for a column whose head names it: ``0.08``, ``2.4``, ``61``."""
    if value is None:
        return UNKNOWN
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def ms_pair(low: float | None, high: float | None) -> str:
    """Two times with one unit at the end, that of the larger: ``24.0/61 ms``, ``49/218 µs``, ``0.03/1.4 s``."""
    if low is None or high is None:
        return f"{ms(low)}/{ms(high)}"  # each with its own unit: there is nothing to agree with
    largest = max(abs(low), abs(high))
    if largest >= 119.5e3:  # minutes and hours: too far apart for one unit
        return f"{ms(low)}/{ms(high)}"
    if largest >= 999.5:
        return f"{ms_bare(low / 1e3)}/{seconds(high / 1e3)}"
    if largest >= 0.9995:
        return f"{ms_bare(low)}/{high:.1f} ms" if abs(high) < 9.95 else f"{ms_bare(low)}/{high:.0f} ms"
    # of a few microseconds a rounded one would be half as much again
    return "/".join(f"{us:.1f}" if abs(us) < 9.95 and us else f"{us:.0f}" for us in (low * 1e3, high * 1e3)) + " µs"


def seconds(value: float | None) -> str:
    """A span: ``0.4 s``, ``41 s``, ``12 min``, ``3.1 h``."""
    if value is None:
        return UNKNOWN
    if abs(value) < 9.95:
        return f"{value:.1f} s"
    if abs(value) < 119.5:
        return f"{value:.0f} s"
    if abs(value) < 7170:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def window(value: float) -> str:
    """A chosen window as people say it: ``5 s``, ``60 s``, ``10 min``."""
    return f"{value:g} s" if value < 120 else f"{value / 60:g} min"


def percent(share: float | None) -> str:
    """A share of 0 to 1 as ``58%``; small ones keep a figure: ``0.3%``."""
    if share is None:
        return UNKNOWN
    value = share * 100
    if 0 < abs(value) < 0.095:
        return f"{value:.2f}%"
    if 0 < abs(value) < 9.95 and abs(value - round(value)) > 0.05:
        return f"{value:.1f}%"
    return f"{value:.0f}%"


def per_s(value: float | None) -> str:
    """A rate a second without its noun: ``231``, ``4.2``, ``1.9 k``."""
    return count(value)


def size(value: int | None) -> str:
    """Bytes: ``840 MiB``, ``1.2 GiB``."""
    if value is None:
        return UNKNOWN
    if value >= 1 << 30:
        return f"{value / (1 << 30):.1f} GiB"
    return f"{value / (1 << 20):.0f} MiB"


def stretched(values: Sequence[float | None], width: int) -> Sequence[float | None]:
    """``values`` in exactly ``width`` places: the newest where there are more, each repeated where there are fewer."""
    n = len(values)
    if width <= 0 or not n:
        return ()
    return values[n - width :] if n >= width else [values[i * n // width] for i in range(width)]


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """The last ``width`` values as bars from zero to ``top`` (default: their maximum); a gap where nothing is known."""
    shown = stretched(values, width)
    known = [v for v in shown if v is not None]
    limit = max(known, default=0.0) if top is None else top
    if not known:
        return ""
    if limit <= 0:
        return "".join(" " if v is None else SPARKS[0] for v in shown)
    return "".join(" " if v is None else SPARKS[max(0, min(7, int(v / limit * 8)))] for v in shown)


def bar(share: float, width: int) -> str:
    """A horizontal bar of ``share`` (0 to 1) of ``width`` cells, in eighths; something is never nothing."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return "█" * full + (BLOCKS[rest] if rest else "")
