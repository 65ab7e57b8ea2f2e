"""What fills the time between forwards, by size: nothing that is most of it may be summed as "rest"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_tui.lines import plain
from sgtop_tui.look import QUIET_CAUSES
from sgtop_tui.panels.charts import shares_list
from sgtop_tui.panels.time import shares


@pytest.mark.parametrize("quiet", sorted(QUIET_CAUSES))
def test_what_is_most_of_the_time_stands_first(quiet: str) -> None:
    assert shares({"recv_requests": 1.0, "other": 2.0, quiet: 97.0})[0] == (quiet, 0.97)


@pytest.mark.parametrize("quiet", sorted(QUIET_CAUSES))
def test_what_is_nobodys_fault_stands_last_while_it_is_not(quiet: str) -> None:
    names = [name for name, _ in shares({quiet: 4.0, "recv_requests": 1.0, "other": 2.0, "run_batch": 3.0})]
    assert names == ["run_batch", "recv_requests", "other", quiet]


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 0.2), min_size=1),
    st.floats(0.0, 0.48),
    st.integers(1, 8),
)
def test_a_list_never_sums_up_silently_what_is_more_than_what_it_shows(
    values: dict[str, float], idle: float, height: int
) -> None:
    items = [(name, share, "", "") for name, share in shares({**values, "no work": idle})]
    lines = [plain(line) for line in shares_list(items, 80, height)]
    assert len(lines) == min(height, len(items))
    shown = [name for name, *_ in items[: height - 1]] if len(items) > height else [name for name, *_ in items]
    least = min((share for name, share, *_ in items if name in shown), default=0.0)
    hidden = {name: share for name, share, *_ in items if name not in shown}
    most = max(hidden.values(), default=0.0)
    if most > least:
        assert any(f"more, {name} " in lines[-1] for name, share in hidden.items() if share == most)


def test_nothing_is_no_shares() -> None:
    assert shares({"recv_requests": 0.0}) == []
