"""The pictures of README and docs: ``python -m tests.tui.images`` draws them from recordings and scenes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from sgtop_core.model.snapshot import Snapshot
from sgtop_core.recording import embedded
from sgtop_core.recording.replay import ReplaySession

from .app_driver import running
from .scenes import SCENES

FOLDER = Path(__file__).parents[2] / "docs" / "img"


@dataclass(frozen=True, slots=True)
class Image:
    """One picture."""

    name: str
    scene: str
    """A scene of the tests, or ``NAME at SECONDS`` of an embedded recording."""
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    palette: str = "default"


IMAGES = (
    Image("contention-120x40", "contention at 14", (120, 40)),
    Image("contention-200x60", "contention at 14", (200, 60)),
    Image("eager-and-stolen-80x24", "eager-and-stolen", (80, 24)),
    Image("decode-bound-80x24", "decode-bound", (80, 24)),
    Image("straggler-120x40", "straggler-tp8", (120, 40)),
    Image("agentless-80x24", "agentless", (80, 24)),
    Image("hung-80x24", "hung", (80, 24)),
    Image("lost-80x24", "lost", (80, 24)),
    Image("tiny-40x10", "eager-and-stolen", (40, 10)),
    Image("explain-80x24", "no-gpu", (80, 24), ("e",)),
    Image("blue-orange-80x24", "eager-and-stolen", (80, 24), (), "blue-orange"),
    Image("light-80x24", "eager-and-stolen", (80, 24), (), "light"),
)


def shown(scene: str) -> Snapshot:
    """The snapshot that a picture shows."""
    name, at, seconds = scene.partition(" at ")
    if not at:
        return SCENES[name](0)
    with embedded.open_demo(name) as recording:
        player = ReplaySession(recording)
        player.seek(float(seconds))
        return player.snapshot()


async def draw(image: Image) -> str:
    """The picture as SVG; blanks kept by viewers that are not browsers, no font fetched from anywhere."""
    async with running(shown(image.scene), image.size, palette=image.palette) as (app, pilot):
        for key in image.keys:
            await pilot.press(key)
            await pilot.pause()
        svg = app.export_screenshot(title="sgtop")
    svg = re.sub(r"\s*@font-face \{.*?\n    \}\n", "\n", svg, flags=re.S)
    svg = svg.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    svg = svg.replace("<text ", '<text xml:space="preserve" ')
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def words(svg: str) -> list[str]:
    """Everything that is written in a picture, in order."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def main() -> None:
    """Draw all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for image in IMAGES:
        (FOLDER / f"{image.name}.svg").write_text(asyncio.run(draw(image)), encoding="utf-8")


if __name__ == "__main__":
    main()
