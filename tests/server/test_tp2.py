"""Two tensor-parallel ranks: both are found, both are attached to, both run the same steps."""

from __future__ import annotations

from sgtop_probes.resolve import resolve

from tests.server.listener import Listener
from tests.server.traces import wait_without_agent
from tests.server.traffic import Background, everything
from tools.sglang_cpu.server import CpuServer


def test_both_ranks_run_the_same_steps(server_tp2: CpuServer) -> None:
    ranks = resolve(f":{server_tp2.port}").ranks
    assert [rank.label for rank in ranks] == ["TP0", "TP1"]
    assert [rank.pid for rank in ranks] == server_tp2.schedulers()
    with Listener(ranks[0]) as zero, Listener(ranks[1]) as one:
        assert [(each.hello["rank"]["tp"], each.hello["rank"]["tp_size"]) for each in (zero, one)] == [(0, 2), (1, 2)]
        before = [each.settled() for each in (zero, one)]
        assert before[0] == before[1]
        everything(server_tp2.client)
        after = [each.settled() for each in (zero, one)]
        assert after[0] == after[1] > before[0]
        same = ("ct", "mode", "bs", "tokens", "decode_tokens", "cached")
        steps = [[[row[c] for c in same] for row in each.rows("step") if row["ct"] > before[0]] for each in (zero, one)]
    assert [row[0] for row in steps[0]] == list(range(before[0] + 1, after[0] + 1))
    assert steps[0] == steps[1]


def test_both_ranks_are_left_without_a_trace_during_traffic(server_tp2: CpuServer) -> None:
    ranks = resolve(f":{server_tp2.port}").ranks
    with Background(server_tp2.client) as traffic:
        for _ in range(5):
            with Listener(ranks[0]) as zero, Listener(ranks[1]) as one:
                for each in (zero, one):
                    each.wait(lambda listener: listener.rows("step"))
            for rank in ranks:
                assert rank.pid is not None
                wait_without_agent(rank.pid, 5)
    assert traffic.failures == []
    assert traffic.answered > 0
