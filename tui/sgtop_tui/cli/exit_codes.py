"""Exit codes of every ``sgtop`` command: one home, from which ``--help`` and docs/exit-codes.md are made."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NO_SERVER = 3
NOT_SGLANG = 4
NO_PERMISSION = 5
NOT_READY = 6
SERVER_GONE = 7
REFUSED = 8
UNSUPPORTED = 9
INTERNAL = 70
INTERRUPTED = 130

MEANINGS: dict[int, str] = {
    OK: "done; also: the interactive screen was left with q or Ctrl-C",
    FAILED: "failed for another reason, which stands on stderr",
    USAGE: "the command line is wrong",
    NO_SERVER: "no such server, port or process, or several and none was chosen",
    NOT_SGLANG: "something answers there, but it is not an SGLang server",
    NO_PERMISSION: "a permission is missing; stderr names it and the command or flag that grants it",
    NOT_READY: "the server is still starting, hangs, or is held by another tracer",
    SERVER_GONE: "the server went away while sgtop watched it",
    REFUSED: "refused: --readonly, or a change that is not safe on this server",
    UNSUPPORTED: "this host, Python or SGLang version cannot do it",
    INTERNAL: "a mistake in sgtop itself; SGTOP_DEBUG=1 shows the trace",
    INTERRUPTED: "broken off with Ctrl-C before there was a result; sgtop has detached",
}


def epilog() -> str:
    """The table of exit codes as ``--help`` prints it."""
    return "exit codes:\n" + "\n".join(f"  {code:>3}  {text}" for code, text in MEANINGS.items())


def document() -> str:
    """docs/exit-codes.md."""
    lines = ["# Exit codes", "", "Made by `python -m sgtop_tui.docs`; do not edit.", ""]
    lines += ["| code | meaning |", "|---|---|", *(f"| {code} | {text} |" for code, text in MEANINGS.items())]
    return "\n".join(lines) + "\n"
