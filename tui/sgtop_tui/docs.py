"""``python -m sgtop_tui.docs [FOLDER]``: writes the pages of docs/ that are made from the program's own texts."""

from __future__ import annotations

import sys
from pathlib import Path

from . import glossary
from .cli import exit_codes


def pages() -> dict[str, str]:
    """File name → text."""
    return {"glossary.md": glossary.document(), "exit-codes.md": exit_codes.document()}


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
