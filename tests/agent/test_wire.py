"""The agent's quick way to pack a table says byte for byte what the plain way says."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sgtop_agent import wire

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(table=st.sampled_from(sorted(wire.TABLES)), rows=st.integers(1, 70), data=st.data(), arrays=st.booleans())
def test_quick_packing_equals_plain_packing(table: str, rows: int, data: st.DataObject, arrays: bool) -> None:
    names = wire.TABLES[table]
    values = [data.draw(st.lists(INT64, min_size=rows, max_size=rows)) for _ in names]
    columns = [array("q", v) for v in values] if arrays else [tuple(v) for v in values]
    plain = wire.pack(wire.events(table, dict(zip(names, columns, strict=True))))
    assert wire.pack_events(table, columns) == plain


@pytest.mark.parametrize("wrong", [0, 1])
def test_columns_of_another_table_are_refused(wrong: int) -> None:
    columns = [(1,)] * (len(wire.TABLES["gc"]) - 1 + 2 * wrong)
    with pytest.raises(ValueError, match="zip"):
        wire.pack_events("gc", columns)
