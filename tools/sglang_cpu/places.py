"""Where things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """The folder for installed servers and made models: ``$SGTOP_CACHE``, else ``~/.cache/sgtop``."""
    given = os.environ.get("SGTOP_CACHE")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "sgtop"
