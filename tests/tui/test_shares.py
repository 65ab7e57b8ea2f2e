"""What fills the time between forwards, by size: nothing that is most of it may be summed as "rest"."""

from __future__ import annotations

import pytest
from sgtop_tui.look import QUIET_CAUSES
from sgtop_tui.panels.time import shares


@pytest.mark.parametrize("quiet", sorted(QUIET_CAUSES))
def test_what_is_most_of_the_time_stands_first(quiet: str) -> None:
    assert shares({"recv_requests": 1.0, "other": 2.0, quiet: 97.0})[0] == (quiet, 0.97)


@pytest.mark.parametrize("quiet", sorted(QUIET_CAUSES))
def test_what_is_nobodys_fault_stands_last_while_it_is_not(quiet: str) -> None:
    names = [name for name, _ in shares({quiet: 4.0, "recv_requests": 1.0, "other": 2.0, "run_batch": 3.0})]
    assert names == ["run_batch", "recv_requests", "other", quiet]


def test_nothing_is_no_shares() -> None:
    assert shares({"recv_requests": 0.0}) == []
