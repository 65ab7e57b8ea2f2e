"""The page that changes the server. It looks like no other: a heavy border in the colour of alarms, its own keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from .. import fmt
from ..lines import EMPTY, Line, plain
from . import switches

if TYPE_CHECKING:
    from sgtop_core.model.snapshot import Snapshot
    from textual.app import ComposeResult

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""A command to the source: on a worker thread, since it may wait."""
REFRESH_S = 1.0


def _pinned(rank: str, asked: Sequence[int], result: Any) -> str:
    """The kernel leaves out, without a word, what the process may not use."""
    became = result.get(rank, {}).get("cpus", asked) if isinstance(result, Mapping) else asked
    less = f" of the {len(asked)} near its GPU: it may not use the others" if len(became) < len(asked) else ""
    return f"pin: {rank} on {fmt.counted(len(became), 'CPU')}{less}"


class ChangePage(ModalScreen[None]):
    """Asks, shows what it costs, and does nothing before a ``y``."""

    DEFAULT_CSS = """
    ChangePage { align: center middle; }
    ChangePage VerticalScroll {
        width: 100%; max-width: 92; height: auto; max-height: 100%;
        background: $background; border: heavy $error; padding: 0 1; scrollbar-size-vertical: 1;
        border-title-color: $error; border-title-style: bold;
    }
    ChangePage Static { width: 1fr; height: auto; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,n", "close", "close"),
        Binding("up", "move(-1)", show=False),
        Binding("down,tab", "move(1)", show=False),
        Binding("enter", "arm", show=False),
        Binding("y", "yes", show=False),
        Binding("b", "back", show=False),
        Binding("k", "keep", show=False),
    ]

    def __init__(
        self,
        names: Sequence[str],
        ask: Ask,
        snapshot: Callable[[], Snapshot | None],
        styles: Mapping[str, Style],
    ) -> None:
        """``names``: switches to show; none: the actions."""
        super().__init__()
        self._names, self._ask, self._snapshot, self._styles = tuple(names), ask, snapshot, styles
        self._rows: list[Mapping[str, Any]] = []
        self._plan: Mapping[str, Any] | None = None
        self._chosen = 0
        self._armed = False
        self._said = ""
        self._passing: str | None = None
        """What ``_said`` stands for is over once this switch is no longer pending; "": once there is an answer."""
        self._lines: list[Line] = []

    def compose(self) -> ComposeResult:
        """One scroll of text."""
        scroll = VerticalScroll(Static("", markup=False))
        scroll.border_title = " THIS CHANGES THE SERVER "
        scroll.border_subtitle = " esc leaves it as it is "
        yield scroll

    def on_mount(self) -> None:
        """Ask what there is, and go on asking."""
        self._show()
        if self._names:
            self._work(self._look)
            self.set_interval(REFRESH_S, lambda: self._work(self._look))

    def text(self) -> str:
        """What stands on the page."""
        return "\n".join(plain(line) for line in self._lines)

    # --- drawing ----------------------------------------------------------------------------------

    def _width(self) -> int:
        return min(86, max(30, self.app.size.width - 8))

    def _show(self) -> None:
        width = self._width()
        if self._names:
            lines = switches.switch_lines(self._rows, self._chosen, self._plan, width)
            if not self._rows and not self._said:
                lines = [(("asking the agents …", "dim"),)]
            snapshot = self._snapshot()
            flips = [f for g in (snapshot.switches if snapshot else ()) for f in g.flips if f.switch in self._names]
            if flips:
                lines += [EMPTY, *switches.flip_lines(flips, width)]
        else:
            lines = switches.action_lines(self._chosen, self._armed, width)
        if self._said:
            lines += [EMPTY, ((self._said, "warn"),)]
        self._lines = lines
        text = Text(no_wrap=False)
        fallback = self._styles.get("", Style())
        for line in lines:
            for piece, word in line:
                text.append(piece, self._styles.get(word, fallback))
            text.append("\n")
        self.query_one(Static).update(text)

    # --- asking, on a worker thread ---------------------------------------------------------------

    def _work(self, work: Callable[[], None]) -> None:
        self.run_worker(work, thread=True, group="change", exit_on_error=False)

    def _reply(self, op: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._ask(op, args)
        except Exception as error:
            return {"ok": False, "error": str(error) or type(error).__name__}

    def _look(self) -> None:
        reply = self._reply("toggle.list", {})
        if not reply.get("ok"):
            self.app.call_from_thread(self._take, [], None, str(reply.get("error", "no answer")))
            return
        groups = list(reply["result"].values())
        rows = [s for s in groups[0]["switches"] if s["name"] in self._names] if groups else []
        plan = None
        if rows:
            row = rows[min(self._chosen, len(rows) - 1)]
            if row["available"] and row["wanted"] == "on":
                asked = self._reply("toggle.plan", {"switch": row["name"], "on": False})
                plans = list(asked["result"].values()) if asked.get("ok") else [{"refuse": asked.get("error")}]
                plan = next((p for p in plans if p["refuse"]), plans[0])
        self.app.call_from_thread(self._take, rows, plan, None)

    def _take(self, rows: list[Mapping[str, Any]], plan: Mapping[str, Any] | None, said: str | None) -> None:
        if self.is_attached:
            self._rows, self._plan = rows, plan
            if said is not None:
                self._said, self._passing = said, ""
            elif self._passing is not None and not self._pending(self._passing):
                self._said, self._passing = "", None
            self._show()

    def _pending(self, name: str) -> bool:
        return any(row["name"] == name and row["state"] == "pending" for row in self._rows)

    def _do(self, op: str, args: Mapping[str, Any], done: str | Callable[[Any], str]) -> None:
        def work() -> None:
            reply = self._reply(op, args)
            ok = bool(reply.get("ok"))
            words = done if isinstance(done, str) else done(reply.get("result"))
            said = words if ok else str(reply.get("error", "refused"))
            self.app.call_from_thread(self._said_now, said, args.get("switch") if ok else None)
            if self._names:
                self._look()

        self._work(work)

    def _said_now(self, said: str, passing: str | None = None) -> None:
        self._said, self._passing = said, passing
        if self.is_attached:
            self._show()

    # --- keys -------------------------------------------------------------------------------------

    def _row(self) -> Mapping[str, Any] | None:
        return self._rows[self._chosen] if self._chosen < len(self._rows) else None

    def action_close(self) -> None:
        """Back to the board; nothing was done."""
        self.dismiss(None)

    def action_move(self, step: int) -> None:
        """Choose another one."""
        n = len(self._rows) if self._names else len(switches.ACTIONS)
        if n:
            self._chosen, self._armed, self._said, self._plan = (self._chosen + step) % n, False, "", None
            self._show()
            if self._names:
                self._work(self._look)

    def action_arm(self) -> None:
        """An action is chosen; it still needs its y."""
        if not self._names:
            self._armed, self._said = True, ""
            self._show()

    def action_yes(self) -> None:
        """Do it."""
        if not self._names:
            if self._armed:
                self._armed = False
                self._act(tuple(switches.ACTIONS)[self._chosen])
            return
        row = self._row()
        if row is None or not row["available"] or row["wanted"] == "off" or self._plan is None or self._plan["refuse"]:
            return
        args = {"switch": row["name"], "on": False, "for_s": switches.FOR_S}
        self._do("toggle", args, f"{row['name']}: asked; it takes effect at one step on all ranks")

    def _act(self, action: str) -> None:
        if action != "pin":
            self._do("action", {"action": action}, f"{action}: done")
            return
        snapshot = self._snapshot()
        places = {r.rank: r.cpu.place for r in snapshot.ranks if r.cpu is not None} if snapshot is not None else {}
        near = {rank: list(p.near_cpus) for rank, p in places.items() if p is not None and p.near_cpus}
        if not near:
            self._said_now("pin: it is not known which CPUs are near the GPUs; `sgtop action pin CPUS` takes a list")
            return
        for rank, cpus in near.items():
            self._do(
                "action",
                {"action": "pin", "cpus": cpus, "rank": rank},
                partial(_pinned, rank, cpus),
            )

    def action_back(self) -> None:
        """Back on now, whoever turned it off."""
        row = self._row()
        if row is not None and row["wanted"] == "off":
            self._do("toggle.back", {"switch": row["name"]}, f"{row['name']}: goes back on")

    def action_keep(self) -> None:
        """No timer."""
        row = self._row()
        if row is not None and row["wanted"] == "off":
            self._do("toggle.keep", {"switch": row["name"]}, f"{row['name']}: stays off until sgtop leaves")
