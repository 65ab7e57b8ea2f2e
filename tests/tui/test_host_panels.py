"""The CPU and GPU panels: what they say for ranks in trouble, in health, and where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sgtop_core.model.snapshot import Culprit, GpuMode
from sgtop_tui.lines import fit, plain
from sgtop_tui.look import Choices, Look
from sgtop_tui.panels import cpu, gpus

from . import scenes


def look(snapshot: scenes.Snapshot) -> Look:
    return Look(snapshot, Choices())


def text(lines: list) -> str:
    return "\n".join(plain(line) for line in lines)


@pytest.mark.parametrize(
    ("numbers", "words"), [((), ""), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 2, 3, 8), "0,2-3,8"), ((5, 7), "5,7")]
)
def test_cpus_are_written_as_the_kernel_writes_them(numbers: tuple[int, ...], words: str) -> None:
    assert cpu.cpus(numbers) == words


def test_a_rank_that_is_robbed_names_the_robber_even_without_a_line_for_him() -> None:
    shown = look(scenes.eager_and_stolen())
    assert "by dockerd (812)" in text(cpu.draw(shown, 80, 2))
    assert "by dockerd (812) 935× 1.8 s, kworker/4:1 (44) 220× 250 ms" in text(cpu.draw(shown, 80, 4))


def test_the_worst_rank_gets_the_line_when_there_is_one() -> None:
    lines = [plain(line) for line in cpu.draw(look(scenes.straggler()), 120, 9)]
    assert lines[6].strip().startswith("by gzip (5120)")
    assert "NUMA 1, its GPU 0" in lines[5]


def test_another_sgtop_and_what_has_ended_are_called_so() -> None:
    assert cpu.culprit(Culprit(7, "python3", 3, 12.0, "another-sgtop")) == "another sgtop (7) 3× 12 ms"
    assert cpu.culprit(Culprit(7, "gzip", 3, 12.0, ended=True)) == "gzip (7, ended) 3× 12 ms"


def test_rates_are_of_the_time_in_which_the_samples_were_taken() -> None:
    """Without an agent nothing else is known; a look that has just begun shows no figures by the billion."""
    base = scenes.eager_and_stolen()
    robbed = replace(base.ranks[0], cpu=replace(base.ranks[0].cpu, wait_ms=1000.0, preemptions=40, seen_s=4.0))
    for covered_s in (0.0, 2.0, 5.0):
        drawn = text(cpu.draw(look(replace(base, ranks=(robbed,), covered_s=covered_s)), 120, 4))
        assert "wait 250 ms/s" in drawn
        assert "preempted 10/s" in drawn
    for seen_s in (0.0, None):
        fresh = replace(robbed, cpu=replace(robbed.cpu, seen_s=seen_s))
        drawn = text(cpu.draw(look(replace(base, ranks=(fresh,), covered_s=0.0)), 120, 4))
        assert "wait 10 s/s" in drawn, "no more than ten times of what was seen"


def test_a_rank_that_has_one_cpu_is_told_apart_from_cpu_0_of_many() -> None:
    base = scenes.eager_and_stolen()
    own = base.ranks[0].cpu
    for allowed, words in (((0,), "cpu 0 only  "), ((0, 1, 5), "cpu 0 of 0-1,5  "), (tuple(range(8)), "cpu 0  ")):
        place = replace(own.place, cpu=0, allowed_cpus=allowed, host_cpus=tuple(range(8)))
        drawn = text(
            cpu.draw(look(replace(base, ranks=(replace(base.ranks[0], cpu=replace(own, place=place)),))), 120, 4)
        )
        assert words in drawn


def test_a_suspect_is_not_called_a_culprit() -> None:
    assert cpu.culprit(Culprit(7, "gzip", 0, 12.0, certain=False)) == "~gzip (7) 12 ms"


def test_what_the_level_does_not_know_is_a_dash_and_the_next_level_is_named() -> None:
    base = scenes.decode_bound()
    blind = replace(base.ranks[0].cpu, level="D", preemptions=None, migrations=None, message="needs CAP_PERFMON")
    shown = look(replace(base, ranks=(replace(base.ranks[0], cpu=blind),)))
    drawn = text(cpu.draw(shown, 120, 4))
    assert "preempted –" in drawn
    assert "moved –" in drawn
    assert "needs CAP_PERFMON" in drawn


def test_only_reasons_that_hurt_are_shown() -> None:
    base = scenes.decode_bound()
    idle = replace(base.gpus[0], throttle_reasons=("idle", "application clocks"))
    hot = replace(base.gpus[1], throttle_reasons=("hardware thermal",))
    lines = [plain(line) for line in gpus.draw(look(replace(base, gpus=(idle, hot))), 120, 5)]
    assert "idle" not in lines[1]
    assert lines[2].rstrip().endswith("hardware thermal")


def test_a_counter_that_the_driver_refuses_is_a_dash() -> None:
    base = scenes.decode_bound()
    old = replace(base.gpus[0], sm_busy=None, dram_busy=None, power_w=None)
    assert text(gpus.draw(look(replace(base, gpus=(old,))), 120, 3)).count("–") == 3


def test_gpus_without_a_line_are_summed_up() -> None:
    lines = [plain(line) for line in gpus.draw(look(scenes.straggler()), 120, 4)]
    assert len(lines) == 4
    assert lines[-1].strip() == "+6  SM busy 55% to 55%  DRAM 34% to 34%"


def estimated(n: int = 1) -> Look:
    """``n`` GPUs with an estimate for two modes."""
    base = scenes.decode_bound()
    modes = {
        "TARGET_VERIFY": GpuMode(3.1, 0.93, sm_busy=0.41, dram_busy=0.78, power_w=512.0, sm_clock_mhz=1755.0),
        "EXTEND": GpuMode(0.4, 0.35, dram_busy=0.2),
    }
    return look(replace(base, gpus=tuple(replace(base.gpus[0], index=i, by_mode=modes) for i in range(n))))


def test_what_the_modes_made_of_a_gpu_is_called_an_estimate() -> None:
    shown = estimated()
    lines = [plain(line) for line in gpus.draw(shown, 120, 9)]
    assert lines[2].strip() == "estimate by mode"
    assert "41%" in lines[3]
    assert "78%" in lines[3]
    assert "1755 MHz" in lines[3]
    assert lines[3].rstrip().endswith("93% alone")
    assert lines[4].rstrip().endswith("35% alone")
    assert "–" in lines[4]
    assert len(gpus.draw(shown, 120, 2)) == 2, "the GPU keeps its line"


@pytest.mark.parametrize("width", [64, 80, 100, 120, 200])
def test_every_estimate_says_of_which_mode_it_is(width: int) -> None:
    lines = [fit(line, width) for line in gpus.draw(estimated(2), width, 9)]
    assert [plain(line).split()[:2] for line in lines[-4:]] == [
        ["0", "TARGET_VERIFY"], ["0", "EXTEND"], ["1", "TARGET_VERIFY"], ["1", "EXTEND"]
    ]  # fmt: skip


def test_estimates_for_which_there_is_no_line_are_counted() -> None:
    lines = [plain(line).strip() for line in gpus.draw(estimated(4), 80, 8)]
    assert len(lines) == 8
    assert lines[5] == "estimate by mode, +6 more"
    assert not any("estimate" in plain(line) for line in gpus.draw(estimated(4), 80, 6)), "a head without a row"
