"""All hooks of one scheduler: putting them on, taking them off, and turning what they wrote into frames."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from . import describe, forwards, stages, steps, versions, wire
from .boundary import Boundary
from .decode import Decoder
from .find import Found
from .gcwatch import WIDTH as GC_WIDTH
from .gcwatch import GcWatch
from .gpu import GpuTimer
from .nvtx import Ranges
from .patches import Fail, Patches
from .rows import Rows
from .timeline import Timeline, mono

QUEUE_PERIOD_NS = 100_000_000
MOST_ROWS = 64
"""Rows that one slice of the agent's thread turns into a frame: some 50 µs, as MOST_PAIRS pairs."""
MOST_PAIRS = 384
HOOK_SAMPLES = 4096

CODE = {name: i for i, name in enumerate(wire.STAGES)}


class Hooks:
    """The hooks of ``found``'s scheduler. ``install`` and ``undo`` run on the agent's thread.

    ``caps`` says what could be hooked; ``patches.off`` why a hook is not (any more).
    """

    def __init__(self, found: Found, nvtx: bool = False) -> None:
        self.scheduler = found.scheduler
        self.found = found
        self.modes = versions.modes()
        self.patches = Patches()
        self.timeline = Timeline()
        self.boundary = Boundary()
        self.state = steps.StepState(by_result=not versions.copies_carry_iter())
        self.ranges = Ranges({number: name for name, number in self.modes.items()})
        self.nvtx_problem = self.ranges.switch(True) if nvtx else None
        self.forward_rows = Rows(forwards.WIDTH, 16384)
        self._decoder = Decoder(self.modes.get("DECODE", -1))
        self.gc_rows = Rows(GC_WIDTH, 2048)
        self.queue_rows = Rows(describe.QUEUE_WIDTH, 512)
        self.hook_ns: array[int] = array("q")
        """Time in hooks a step, since ``take_hook_ns``."""
        self._retracted = [0]
        self._gc = GcWatch(self.gc_rows, found.ident, self.patches)
        self._read_queue: Callable[[int], tuple[int, ...]] | None = None
        self._paths: set[tuple[int, str]] = set()
        self._forward_pairs = False
        """a step has one forward, of its own batch, and no GPU event: its hook writes pairs"""
        self.gpu: GpuTimer | None = None

    # --- on and off ------------------------------------------------------------------------------

    def install(self) -> None:
        """Put every hook on that this version has a place for."""
        s, tl, p = self.scheduler, self.timeline, self.patches
        loop = versions.loop_points(s, self.found.loop)
        self.gpu = self._make_gpu()
        try:
            self._read_queue = describe.queue_reader(s, self._retracted)
        except Exception as error:
            p.off["queue"] = f"{type(error).__name__}: {error}"[:300]
        runners, graphs = self._runners()
        self._forward_pairs = self.gpu is None and len(runners) == 1 and not graphs
        self._install_forwards()
        for stage, path in loop.stages:
            open_end = loop.tight and stage == "process_input_requests"
            p.method(f"stage:{path}", s, path, stages.stage(tl, CODE[stage], open_end))
        if loop.sample:
            sampled = self.gpu.sampled if self.gpu is not None else lambda: None
            p.method("stage:sample", s, loop.sample, stages.sample(tl, CODE["launch_batch_sample_if_needed"], sampled))
        p.method("retracted", s, "_add_request_to_queue", self._count_retracted)
        if loop.boundary:
            code = CODE["get_next_batch_to_run"]
            p.method(
                "boundary", s, loop.boundary, stages.boundary(tl, code, self.boundary, self._tick, QUEUE_PERIOD_NS)
            )
        if loop.idle:
            p.method("idle", s, loop.idle, stages.idle(tl, self._after_idle))
        accepted = versions.accepted(s, self.modes)
        p.method(
            "result",
            s,
            "process_batch_result",
            steps.process_batch_result(tl, CODE["process_batch_result"], accepted, self.state),
        )
        read, decode = versions.read_batch(self.modes), self.modes.get("DECODE", -1)
        p.method(
            "step",
            s,
            "run_batch",
            steps.run_batch(
                s, tl, CODE["run_batch"], decode, read, self.state, self.gpu, self.ranges, self._forward_pairs
            ),
        )
        turn = stages.turn(tl, CODE["recv_requests"], versions.pause_flags(s), loop.tight)
        if loop.turn:  # last: a turn that began without it would have no head
            p.method("turn", s, loop.turn, turn)
        self._gc.open()

    def _make_gpu(self) -> GpuTimer | None:
        cuda = versions.cuda(self.scheduler)
        if cuda is None:
            return None
        try:
            runners, graphs = self._runners()
            _, complete = versions.late_points([r for _, r in runners], [g for g, _ in graphs])
            stream = versions.forward_stream(self.scheduler, self.found.loop)
            return GpuTimer(cuda, mono, forwards.emitter(self.forward_rows), stream, entry_start=not complete)
        except Exception as error:
            self.patches.off["gpu-events"] = f"{type(error).__name__}: {error}"[:300]
            return None

    def _runners(self) -> tuple[list[tuple[int, Any]], list[tuple[Any, str]]]:
        target = versions.target_runner(self.scheduler)
        runners = [(forwards.TARGET, target)] if target is not None else []
        runners += [(forwards.DRAFT, runner) for runner in versions.draft_runners(self.scheduler)]
        return runners, versions.draft_graph_runners(self.scheduler)

    def _install_forwards(self) -> None:
        """Hook runners; those hooked already stay as they are (a speculative server may swap its graph runners)."""
        read = versions.read_forward(self.modes)
        runners, graphs = self._runners()
        for kind, runner in runners:
            if self._forward_pairs:
                make = forwards.only_forward(self.timeline)
            else:
                make = forwards.forward(kind, self.timeline, self.forward_rows, read, self.state, self.gpu)
            self._once("forward", runner, "forward", make)
        for graph, method in graphs:
            make = forwards.forward(
                forwards.DRAFT, self.timeline, self.forward_rows, read, self.state, self.gpu, graph_only=True
            )
            self._once("forward:draft-graph", graph, method, make)
        if self.gpu is not None:
            points, _ = versions.late_points([r for _, r in runners], [g for g, _ in graphs])
            for owner, name, entry in points:
                self._once("gpu-start", owner, name, (forwards.late_entry if entry else forwards.late_exit)(self.gpu))

    def _once(self, hook: str, owner: Any, name: str, make: Any) -> None:
        if (id(owner), name) not in self._paths and hook not in self.patches.off:
            self._paths.add((id(owner), name))
            self.patches.method(hook, owner, name, make)

    def refresh(self) -> None:
        """Look for runners that came since; about once a second."""
        if {"turn", "boundary", "idle"} & set(self.patches.off):
            self.timeline.stop()  # without its head or its end a turn cannot be told from the next one
        try:
            self._install_forwards()
        except Exception as error:
            self.patches.off.setdefault("refresh", f"{type(error).__name__}: {error}"[:300])

    def undo(self) -> None:
        """Take everything off. GPU events are let go on the main thread when it comes to a boundary in time."""
        gpu, self.gpu = self.gpu, None
        if gpu is not None and self.boundary.at_step(gpu.close):
            deadline = time.monotonic() + 0.1
            while self.boundary.pending and time.monotonic() < deadline:
                time.sleep(0.002)
        self.patches.undo()
        self._gc.close()
        self.ranges.on = False
        if gpu is not None:
            gpu.close()
        self.boundary.pending.clear()

    def gc_off(self) -> None:
        """Stop watching collections only (a forked child)."""
        self._gc.close()

    @property
    def caps(self) -> list[str]:
        """Names of what works, as in ``wire.HELLO_AGENT``."""
        names = self.patches.names
        have = {
            "step": "step" in names,
            "result": "result" in names,
            "stage": "turn" in names and "boundary" in names,
            "idle": "idle" in names,
            "gc": "gc" not in self.patches.off,
            "queue": self._read_queue is not None and "queue" not in self.patches.off,
            "forward": "forward" in names,
            "graph": "forward" in names or "step" in names,
            "gpu-events": self.gpu is not None and self.gpu.on,
            "nvtx": self.ranges.on,
            "boundary": "boundary" in names,
        }
        return [name for name, yes in have.items() if yes]

    @property
    def retracted(self) -> int:
        """Requests retracted since the hooks went on."""
        return self._retracted[0]

    # --- main thread -----------------------------------------------------------------------------

    def _tick(self, now: int) -> None:
        if self._read_queue is not None:
            try:
                self.queue_rows.add(self._read_queue(now))
            except Exception as error:
                self._read_queue = None
                self.patches.fail("queue", error)

    def _after_idle(self) -> None:
        gpu = self.gpu
        if gpu is not None and gpu.pending:
            gpu.poll()

    def _count_retracted(self, original: Any, fail: Fail) -> Any:
        retracted = self._retracted

        def hook(*args: Any, **kwargs: Any) -> Any:
            try:
                if kwargs.get("is_retracted") or (len(args) > 1 and args[1]):
                    retracted[0] += 1
            except BaseException as error:
                fail(error)
            return original(*args, **kwargs)

        return hook

    # --- agent's thread --------------------------------------------------------------------------

    def calibrate(self) -> None:
        """Measure, in short slices, what a hook costs here beyond what it can measure itself: being called.

        Median of rounds: hooked less bare less what the hook says.
        """

        def bare(*args: Any, **kwargs: Any) -> None:
            return None

        sandbox = Timeline()
        sandbox.measure = True
        hooked = stages.stage(sandbox, 1)(bare, lambda error: None)
        rounds = []
        for _ in range(9):
            sandbox.spent = 0
            a = mono()
            for _ in range(40):
                bare(None)
            b = mono()
            for _ in range(40):
                hooked(None)
            c = mono()
            sandbox.marks.clear()
            rounds.append(max(0, (c - b) - (b - a) - sandbox.spent) // 40)
            time.sleep(0.0005)
        self._decoder.call_ns = sorted(rounds)[len(rounds) // 2]

    def drain(self, now: int) -> Iterator[bytes]:
        """Packed frames of what was written, a piece of work each; the caller yields the GIL between them."""
        decoder = self._decoder
        made: dict[str, list[tuple[int, ...]]] = {"step": [], "forward": [], "result": []}
        for _ in range(1 + len(self.timeline.marks) // (2 * MOST_PAIRS)):
            decoder.feed(*self.timeline.take(MOST_PAIRS))
            made["step"] += decoder.steps
            made["forward"] += decoder.forwards
            made["result"] += decoder.results
            stage, t0, t1 = self.timeline.segments(decoder.times, decoder.stages, now)
            if len(t0):
                yield wire.pack_events("stage", (stage, t0, t1))
        room = HOOK_SAMPLES - len(self.hook_ns)
        self.hook_ns.extend([row[-1] for row in made["step"] if row[-1] >= 0][: max(0, room)])
        for name, rows in made.items():
            for i in range(0, len(rows), MOST_ROWS):
                yield wire.pack_events(name, list(zip(*rows[i : i + MOST_ROWS], strict=True)))
        for name, ring in self._rings():
            while len(ring):
                yield wire.pack_events(name, ring.take(MOST_ROWS))

    def _rings(self) -> tuple[tuple[str, Rows], ...]:
        return (("forward", self.forward_rows), ("gc", self.gc_rows), ("queue", self.queue_rows))

    def take_hook_ns(self) -> tuple[int, int, int, int]:
        """Steps measured since the last call, and median, 99th percentile and maximum of their time in hooks."""
        values = sorted(self.hook_ns)
        self.hook_ns = array("q")
        n = len(values)
        if not n:
            return 0, -1, -1, -1
        return n, values[n // 2], values[min(n - 1, n * 99 // 100)], values[-1]

    def lost(self) -> dict[str, int]:
        """Table → rows lost since the hooks went on."""
        out = {name: rows.lost for name, rows in self._rings()}
        out["stage"] = self.timeline.lost
        out["step"] = self.timeline.lost_steps
        if self.gpu is not None:
            out["gpu-events"] = self.gpu.lost
        return out

    def off(self) -> dict[str, str]:
        """Hook → why it is off, in words."""
        out = dict(self.patches.off)
        if self.gpu is not None and not self.gpu.on:
            out["gpu-events"] = self.gpu.why_off
        return out
