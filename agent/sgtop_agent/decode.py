"""From the pairs of the time line to rows of steps, forwards and results. Agent's thread only."""

from __future__ import annotations

from array import array

from . import timeline as tl


class Step:
    """A ``run_batch`` that has begun and not yet ended."""

    __slots__ = ("bs", "cached", "decoding", "forwards", "graph", "mode", "t0", "tokens")

    def __init__(self, t0: int, mode: int, bs: int = 0, tokens: int = 0, decoding: int = 0) -> None:
        self.t0, self.mode, self.bs, self.tokens, self.decoding = t0, mode, bs, tokens, decoding
        self.cached = 0
        self.graph = -1
        self.forwards: list[tuple[int, int, int]] = []
        """t0, t1, graph"""


class Decoder:
    """Keeps what spans several chunks: steps may be nested (a PREBUILT batch runs an idle batch inside).

    After ``feed``: ``times`` and ``stages`` are the marks of the chunk; ``steps``, ``forwards`` and ``results`` the
    rows that it completed, in the order of ``wire.TABLES``. ``call_ns`` is what calling a hook costs.
    """

    def __init__(self, decode_mode: int) -> None:
        self._decode_mode = decode_mode
        self._open: list[Step] = []
        self._last = 0
        self._forward_t0 = -1
        self._spent = -1
        self._accepted = -1
        self._marks = 0
        self.call_ns = 0
        self.times: array[int] = array("q")
        self.stages: array[int] = array("q")
        self.steps: list[tuple[int, ...]] = []
        self.forwards: list[tuple[int, ...]] = []
        self.results: list[tuple[int, ...]] = []

    def feed(self, values: list[int], codes: list[int]) -> None:
        """Decode one chunk."""
        times, stages = [], []
        self.steps, self.forwards, self.results = [], [], []
        last = self._last
        for value, code in zip(values, codes, strict=True):
            if code < tl.KINDS:
                times.append(value)
                stages.append(code)
                last = value
                if code == tl.HOLE:
                    self._open.clear()
            else:
                self._pair(value, code, last)
        self._last = last
        self._marks += len(times)
        self.times, self.stages = array("q", times), array("q", stages)

    def _pair(self, value: int, code: int, last: int) -> None:
        opened = self._open
        if code == tl.STEP_DECODE:
            opened.append(Step(last, self._decode_mode, value, value, value))
        elif code == tl.FORWARD:
            self._forward_t0 = value
        elif code in (tl.FORWARD_EAGER, tl.FORWARD_GRAPH, tl.FORWARD_UNKNOWN):
            if opened:
                graph = 1 if code == tl.FORWARD_GRAPH else 0 if code == tl.FORWARD_EAGER else -1
                opened[-1].forwards.append((self._forward_t0, value, graph))
        elif code == tl.STEP_END:
            if opened:
                self._end(opened.pop(), value, last)
        elif code == tl.RESULT:
            self.results.append((value, last, self._accepted, -1))
            self._accepted = -1
        elif code == tl.SPENT:
            self._spent = value
        elif code == tl.ACCEPTED:
            self._accepted = value
        elif code == tl.STEP_MODE:
            opened.append(Step(last, value))
        elif opened:
            step = opened[-1]
            if code == tl.STEP_BS:
                step.bs = value
            elif code == tl.STEP_TOKENS:
                step.tokens = value
            elif code == tl.STEP_DECODING:
                step.decoding = value
            elif code == tl.STEP_CACHED:
                step.cached = value
            elif code == tl.STEP_GRAPH:
                step.graph = value
            elif code == tl.STEP_RAISED:
                opened.pop()

    def _end(self, step: Step, ct: int, t1: int) -> None:
        graph = step.graph
        for t0, end, graph in step.forwards:
            row = (ct, 0, step.mode, t0, end, -1, -1, -1, step.bs, step.tokens, graph)
            self.forwards.append(row)
        spent, self._spent = self._spent, -1
        if spent >= 0:
            # Hooks measure themselves in one step of eight. What calling them costs they do not see; a turn has
            # about as many marks as calls.
            spent += self._marks * self.call_ns
        self._marks = 0
        self.steps.append((ct, step.mode, step.t0, t1, step.bs, step.tokens, step.decoding, step.cached, graph, spent))
