"""``python -m sgtop_tui`` is ``sgtop``."""

from .cli import script

if __name__ == "__main__":
    script()
