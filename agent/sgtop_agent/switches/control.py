"""Switches on the agent's thread: operations, owners, timers, guards, what clients see, and when the hooks may go.

A flip belongs to the connection that asked for it. What is *wanted* is the flips that are still owned; the leader's
main thread brings the group there. Nothing here waits.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from .. import describe
from ..ops import LATER, Call, OpError
from . import estimate, known, protocol, report
from .page import I_WORD, S_LEAVING, S_PID, Page, PageError
from .rank import RankSwitches
from .report import Flip

if TYPE_CHECKING:
    from ..clients import Client
    from ..serve import Agent

TICK_NS = 50_000_000
TELL_NS = 1_000_000_000
DEFAULT_S = 60.0
LONGEST_S = 3600.0
JOIN_NS = 5_000_000_000
"""Ranks that have not armed after this long: the flip is called off."""
GPU_LOW = 256 * 1024 * 1024
KV_LOW = 0.02
CLOSE_S = 3.0
REASONS_NS = 500_000_000

logger = logging.getLogger("sgtop")
mono = time.monotonic_ns


class SwitchControl:
    """The switches of one rank for as long as its hooks are on."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._rank: RankSwitches | None = None
        self._flips: dict[str, Flip] = {}
        self._back: dict[str, str] = {}
        """switch on its way back → why"""
        self._whys: dict[str, str] = {}
        """switch → why its last flip went back; empty while it is flipped"""
        self._word = 0
        self._in_force = 0
        self._told = 0
        self._gpu_at = 0
        self._kv: tuple[int, int, int] | None = None
        self._alone = False
        self._why: tuple[int, dict[str, str]] = (-REASONS_NS, {})

    def register(self) -> None:
        """Operations and ticks."""
        agent = self._agent
        for name in OPS:
            agent.ops.register(f"switch.{name}", getattr(self, f"_op_{name}"))
        agent.every(TICK_NS, self.tick, lambda: self._rank is not None)
        agent.on_client_gone(self.gone)
        agent.add_busy(self.busy)
        agent.on_fork(self._in_child)
        agent.on_undo(self.close)

    # --- what there is ---------------------------------------------------------------------------

    def _group(self) -> tuple[int, int]:
        return known.group(self._agent.scheduler, describe.ranks(self._agent.scheduler))

    def _no_group(self) -> str:
        return report.no_group(self._agent.hooks)

    def _reasons(self) -> dict[str, str]:
        """Switch → why not; looked up afresh."""
        self._why = mono(), report.reasons(self._agent.hooks, self._rank)
        return self._why[1]

    def state(self) -> dict[str, Any]:
        """The ``switch`` frame. Reasons may be half a second old: looking them up takes the GIL for a while."""
        fresh = mono() - self._why[0] < REASONS_NS
        reasons = self._why[1] if fresh else self._reasons()
        own, size = self._group()
        ct = int(self._agent.scheduler.forward_ct)
        return report.frame(mono(), own, size, ct, self._rank, self._flips, reasons, self._whys)

    def _tell(self) -> None:
        self._told = mono()
        self._agent.emit(self.state())

    def _audit(self, text: str, level: str = "info") -> None:
        """A line in the server's log and one for every client's."""
        try:
            logger.warning("sgtop: %s", text)
        except Exception:
            pass  # a log that cannot be written is no reason not to go back
        self._agent.note(level, text)

    # --- operations ------------------------------------------------------------------------------

    def _op_list(self, call: Call) -> dict[str, Any]:
        state = self.state()
        state.pop("k")
        return state

    def _name(self, call: Call) -> str:
        name = call.args.get("switch")
        if name not in known.BITS:
            raise OpError(f"there is no switch {name!r}; there are {', '.join(known.BITS)}")
        return str(name)

    def _check(self, name: str, on: Any) -> None:
        if not isinstance(on, bool):
            raise OpError("on must be true or false")
        why = self._reasons()[name]
        if why and not on:
            raise OpError(f"{name} cannot be switched: {why}")

    def _op_plan(self, call: Call) -> dict[str, Any]:
        name, on = self._name(call), call.args.get("on")
        self._check(name, on)
        if on:
            return {"switch": name, "on": True, "text": "back to what the server was started with", "refuse": ""}
        return {"switch": name, "on": False, **estimate.plan(self._agent.scheduler, known.BITS[name])}

    def _op_open(self, call: Call) -> Any:
        own, size = self._group()
        if own != 0:
            raise OpError(f"rank {own} does not lead its group")
        no = self._no_group()
        if no:
            raise OpError(f"nothing can be switched here: {no}")
        if self._rank is not None and self._rank.page.closed:
            self._disarm()
        if self._rank is None:
            try:
                page = Page.make(size, mono())
            except (PageError, OSError) as error:
                raise OpError(f"no page for the switches: {error}")
            self._arm(page, 0, leader=True)
        rank = self._rank
        assert rank is not None
        call.done({"epoch": rank.page.epoch, "ranks": size, "page": True}, (rank.page.fd,))
        return LATER

    def _op_join(self, call: Call) -> dict[str, Any]:
        epoch = call.args.get("epoch")
        if not call.client.fds:
            raise OpError("switch.join: no page came with it")
        fd = call.client.fds.popleft()
        try:
            own, size = self._group()
            no = self._no_group()
            if no:
                raise OpError(f"nothing can be switched here: {no}")
            if self._rank is not None:
                if self._rank.page.epoch == epoch:
                    return {"rank": own, "joined": True}
                if not self._rank.page.closed:
                    raise OpError("another page of this group is still open")
                self._disarm()
            if own == 0 or not isinstance(epoch, int):
                raise OpError(f"rank {own} cannot join that page")
            page = Page.adopt(fd, epoch)
            if page.ranks != size:
                page.close()
                raise OpError(f"the page is for {page.ranks} ranks, this group has {size}")
            self._arm(page, own, leader=False)
            return {"rank": own, "joined": True}
        except PageError as error:
            raise OpError(str(error))
        finally:
            os.close(fd)

    def _arm(self, page: Page, own: int, leader: bool) -> None:
        agent = self._agent
        hooks = agent.hooks
        assert hooks is not None
        rank = RankSwitches(hooks.scheduler, hooks.found.loop, page, own, leader, self._guard, agent.wake)
        page.words[page.slot_at(own) + S_PID] = os.getpid()
        why = rank.arm()
        if why:
            raise OpError(why)
        self._rank, self._word, self._in_force, self._alone = rank, 0, 0, False

    def _op_flip(self, call: Call) -> dict[str, Any]:
        name, on = self._name(call), call.args.get("on")
        self._check(name, on)
        rank = self._rank
        if on:
            return self._go_back(name, f"asked by {call.who}")
        if rank is None or not rank.leader or rank.page.closed:
            raise OpError("switch.open comes first, at the rank that leads the group")
        if name in self._flips:
            raise OpError(f"{name} is off already, by {self._flips[name].who}")
        if name in self._back or protocol.unpack(rank.page.words[I_WORD]).after & known.BITS[name]:
            raise OpError(f"busy: {name} is on its way back")
        why = estimate.plan(self._agent.scheduler, known.BITS[name])["refuse"]
        if why:
            raise OpError(f"{name} cannot be switched off: {why}")
        for_s = call.args.get("for_s", DEFAULT_S)
        if not isinstance(for_s, (int, float)) or isinstance(for_s, bool) or not 0 < for_s <= LONGEST_S:
            raise OpError(f"for_s is a number of seconds, at most {LONGEST_S:.0f}")
        now = mono()
        flip = Flip(name, id(call.client), call.who, now, now + int(for_s * 1e9), self._retracted())
        self._flips[name] = flip
        self._whys.pop(name, None)
        self._want()
        self._audit(f"{name} off for {for_s:g} s, asked by {flip.who}")
        self._agent.post(self._tell)
        return {
            "switch": name,
            "on": False,
            "for_s": for_s,
            "state": "pending",
            "ct": int(self._agent.scheduler.forward_ct),
        }

    def _op_keep(self, call: Call) -> dict[str, Any]:
        name = self._name(call)
        flip = self._flips.get(name)
        if flip is None:
            raise OpError(f"{name} is not flipped")
        if flip.owner != id(call.client):
            raise OpError(f"{name} was flipped by {flip.who}; only they can keep it")
        flip.until = None
        self._audit(f"{name} stays off until {flip.who} leaves")
        self._agent.post(self._tell)
        return {"switch": name, "kept": True}

    def _op_back(self, call: Call) -> dict[str, Any]:
        name = call.args.get("switch")
        if name is not None:
            name = self._name(call)
        # A person who names a switch gets it back, whoever flipped it. A client that tidies up after itself says
        # "mine": by then the flip may have ended, and the switch may be off for somebody else.
        only_mine = name is None or bool(call.args.get("mine"))
        flips = [f for f in self._flips.values() if name is None or f.name == name]
        back = [f.name for f in flips if not only_mine or f.owner == id(call.client)]
        for each in back:
            self._go_back(each, f"asked by {call.who}")
        return {"back": back}

    # --- flips -----------------------------------------------------------------------------------

    def _want(self) -> None:
        if self._rank is not None:
            wanted = 0
            for flip in self._flips.values():
                wanted |= flip.bit
            self._rank.wanted = wanted

    def _go_back(self, name: str, why: str, level: str = "info") -> dict[str, Any]:
        flip = self._flips.pop(name, None)
        if flip is None:
            return {"switch": name, "on": True, "state": "on", "nothing": True}
        self._back[name] = self._whys[name] = why
        self._want()
        self._audit(f"{name} goes back on: {why}", level)
        self._agent.post(self._tell)
        return {"switch": name, "on": True, "state": "pending"}

    def gone(self, client: Client) -> None:
        """A client has left: what it flipped goes back."""
        for flip in list(self._flips.values()):
            if flip.owner == id(client):
                self._go_back(flip.name, f"{flip.who} has gone", "warning")

    def _retracted(self) -> int:
        hooks = self._agent.hooks
        return hooks.retracted if hooks is not None else 0

    def _guard(self, now: int) -> None:
        """Main thread, a few times a second while something is flipped: the pool, read where it cannot change."""
        if self._rank is not None and self._rank.leader:
            self._kv = estimate.kv(self._agent.scheduler)

    def _watch(self, now: int) -> None:
        """What sends flips back by itself."""
        rank = self._rank
        assert rank is not None
        low = self._low_gpu(now) if any(f.bit != known.RADIX for f in self._flips.values()) else ""
        for flip in list(self._flips.values()):
            why = ""
            if flip.until is not None and now >= flip.until:
                self._go_back(flip.name, "its time is over")
            elif self._retracted() > flip.retracted:
                why = f"{self._retracted() - flip.retracted} requests were retracted since"
            elif flip.bit == known.RADIX and rank.flags.held:
                why = "a session was opened"
            elif flip.bit == known.RADIX and rank.flags.state & known.RADIX and self._kv is not None:
                used, _, total = self._kv
                if total - used < KV_LOW * total:
                    why = f"the KV pool is nearly full ({used} of {total} tokens)"
            elif flip.bit != known.RADIX:
                why = low
            if why:
                self._go_back(flip.name, why, "warning")

    def _low_gpu(self, now: int) -> str:
        if now < self._gpu_at:
            return ""
        self._gpu_at = now + 1_000_000_000
        free = estimate.gpu_free(self._agent.scheduler)
        if free is not None and free < GPU_LOW:
            return f"GPU memory is low ({free / 1e6:.0f} MB free)"
        return ""

    # --- the clock -------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Move on; ``now`` CLOCK_MONOTONIC ns."""
        rank = self._rank
        if rank is None:
            return
        alone = not any(c.greeted for c in self._agent.clients)
        if rank.page.closed:
            if rank.flags.state == 0:
                self._disarm()
            return
        if rank.leader:
            self._tick_leader(rank, now, alone)
        elif alone != self._alone:
            rank.page.words[rank.page.slot_at(rank.rank) + S_LEAVING] = int(alone)
        self._alone = alone
        self._notice(rank)
        if (self._flips or self._back or rank.flags.state) and now - self._told >= TELL_NS:
            self._tell()

    def _tick_leader(self, rank: RankSwitches, now: int, alone: bool) -> None:
        slots = rank.page.slots()
        leaving = [i for i, s in enumerate(slots) if s.leaving]
        if leaving or rank.broken:
            why = f"sgtop has left rank {leaving[0]}" if leaving else f"a hook failed: {rank.broken}"
            for name in list(self._flips):
                self._go_back(name, why, "warning")
        rank.close_wanted = alone or bool(leaving)
        refused, rank.refused = rank.refused, ""
        after = protocol.unpack(rank.page.words[I_WORD]).after
        missing = [str(i) for i, s in enumerate(slots) if not s.armed]
        for flip in list(self._flips.values()):
            if after & flip.bit:
                continue
            if refused:
                self._go_back(flip.name, f"refused: {refused}", "warning")
            elif missing and now - flip.asked > JOIN_NS:
                self._go_back(flip.name, f"rank {', '.join(missing)} did not join", "warning")
        self._watch(now)

    def _notice(self, rank: RankSwitches) -> None:
        """Say what the main threads have done since."""
        word = rank.page.words[I_WORD]
        after, _, n = protocol.unpack(word)
        if word != self._word:
            self._word = word
            for flip in self._flips.values():
                if after & flip.bit and flip.step is None:
                    flip.step = n + 1  # the boundary at forward_ct = N is that of step N + 1
                elif not after & flip.bit:
                    flip.step = None
            self._tell()
        if rank.leader and after != self._in_force and protocol.settled(word, rank.page.slots()):
            changed, self._in_force = after ^ self._in_force, after
            for name, bit in known.BITS.items():
                if changed & bit:
                    said = "off" if after & bit else "on"
                    self._audit(f"{name} is {said} on {rank.page.ranks} rank(s) since step {n + 1}")
            self._tell()
        if rank.leader:
            for name in list(self._back):
                if not after & known.BITS[name] and protocol.settled(word, rank.page.slots()):
                    del self._back[name]
                    self._tell()
        if not rank.leader and rank.log and rank.log[-1][2] > self._told:
            self._tell()

    # --- leaving ---------------------------------------------------------------------------------

    def busy(self) -> bool:
        """The hooks must stay: this rank still follows a page, and its leader has not closed it."""
        rank = self._rank
        return rank is not None and not (rank.page.closed and rank.flags.state == 0)

    def _disarm(self) -> None:
        rank, self._rank = self._rank, None
        if rank is not None:
            rank.disarm()
        self._flips.clear()
        self._back.clear()

    def close(self) -> None:
        """The hooks go. Only a failure of the agent itself comes here with a page that is open."""
        end = time.monotonic() + CLOSE_S
        rank = self._rank
        self._flips.clear()
        self._want()
        while rank is not None and self.busy() and time.monotonic() < end:
            rank.close_wanted = True
            if not rank.leader:
                rank.page.words[rank.page.slot_at(rank.rank) + S_LEAVING] = 1
            time.sleep(0.01)
        if not self.busy():
            self._disarm()
        # else the hook stays and goes on following the page: a rank that stopped to follow could hang the group

    def _in_child(self) -> None:
        if self._rank is not None:
            self._rank.off_in_child()


OPS = ("list", "plan", "open", "join", "flip", "keep", "back")
