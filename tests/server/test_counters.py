"""Every step that SGLang ran is there once, with SGLang's own mode, batch size and tokens; on each version.

SGLang says what it did in two ways that sgtop does not read here: its counters of tokens by mode
(``sglang:realtime_tokens_total``) and its log, in which each step stands under its ``forward_ct``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sgtop_probes.resolve import resolve

from tests.server.listener import Listener
from tests.server.servers import Config, Pool, steps_in_log
from tests.server.traffic import at_once, counters, everything, ids
from tools.sglang_cpu.install import VERSIONS

# A KV pool in which sixteen requests of 260 tokens do not fit, and a scheduler that hopes they do: some are retracted.
CROWDED = Config(
    flags=(
        *("--enable-mixed-chunk", "--max-total-tokens", "2200", "--max-running-requests", "16"),
        *("--schedule-conservativeness", "0.1"),
    )
).logging_steps()
PREFILL = ("EXTEND", "MIXED")


@pytest.mark.parametrize("version", VERSIONS)
def test_steps_modes_batches_and_tokens_are_sglangs_own(servers: Pool, version: str) -> None:
    server = servers.get(replace(CROWDED, version=version))
    (rank,) = resolve(f":{server.port}").ranks
    with Listener(rank) as listener:
        assert listener.connection.way == "pending-call"
        assert listener.hello["sglang"] == version
        before = listener.settled()
        counted = counters(server.client)
        everything(server.client)
        after = listener.settled()
        counted = counters(server.client) - counted
        steps = [row for row in listener.rows("step") if row["ct"] > before]
        queue = listener.rows("queue")
        stat = listener.frames("stat")[-1]
        names = {number: name for name, number in listener.hello["modes"].items()}

    assert not any(stat["lost"].values()), stat
    assert stat["off"] == {}
    # Each forward_ct once, in order: none is missing, none is made up.
    assert [row["ct"] for row in steps] == list(range(before + 1, after + 1))
    seen = {names[row["mode"]] for row in steps}
    assert seen == {"EXTEND", "MIXED", "DECODE"}

    logged = {step.ct: step for step in steps_in_log(server, before)}
    assert sorted(logged) == [row["ct"] for row in steps]
    for row in steps:
        said, mode = logged[row["ct"]], names[row["mode"]]
        if said.kind == "Prefill":
            assert mode in PREFILL, (row, said)
            assert (row["tokens"] - row["decode_tokens"], row["cached"]) == (said.tokens, said.cached), (row, said)
            assert (row["decode_tokens"] > 0) == (mode == "MIXED"), row
        else:
            assert mode == "DECODE", (row, said)
            assert (row["bs"], row["tokens"], row["decode_tokens"]) == (said.tokens,) * 3, (row, said)
            assert row["cached"] == 0

    prefill = [row for row in steps if names[row["mode"]] in PREFILL]
    decode = [row for row in steps if names[row["mode"]] == "DECODE"]
    assert sum(row["tokens"] - row["decode_tokens"] for row in prefill) == counted.prefill_compute
    assert sum(row["cached"] for row in prefill) == counted.prefill_cache
    assert sum(row["tokens"] for row in decode) == counted.decode
    # A prompt of 900 tokens went in in chunks of 256; the radix cache answered; something was retracted.
    assert max(row["tokens"] for row in prefill) <= 256 + 16
    assert counted.prefill_cache > 0
    assert queue[-1]["retracted"] == server.client.total("sglang:num_retracted_requests_total", tp_rank="0") > 0


def test_a_second_client_sees_the_same_steps(servers: Pool) -> None:
    server = servers.get(replace(CROWDED, version=VERSIONS[0]))
    (rank,) = resolve(f":{server.port}").ranks
    with Listener(rank) as first, Listener(rank) as second:
        before = max(first.settled(), second.settled())
        at_once(server.client, [ids(30, 700 + i) for i in range(6)])
        after = first.settled()
        assert second.settled() == after
        ours = [[row for row in each.rows("step") if row["ct"] > before] for each in (first, second)]
    assert ours[0] == ours[1]
    assert len(ours[0]) == after - before > 0
