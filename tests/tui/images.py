"""The pictures of docs/screen.md: ``python -m tests.tui.images`` draws them anew from the scenes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from .app_driver import running
from .scenes import SCENES

FOLDER = Path(__file__).parents[2] / "docs" / "img"


@dataclass(frozen=True, slots=True)
class Image:
    """One picture."""

    name: str
    scene: str
    size: tuple[int, int]
    keys: tuple[str, ...] = ()
    palette: str = "default"


IMAGES = (
    Image("eager-and-stolen-80x24", "eager-and-stolen", (80, 24)),
    Image("decode-bound-80x24", "decode-bound", (80, 24)),
    Image("decode-bound-200x60", "decode-bound", (200, 60)),
    Image("straggler-120x40", "straggler-tp8", (120, 40)),
    Image("agentless-80x24", "agentless", (80, 24)),
    Image("hung-80x24", "hung", (80, 24)),
    Image("lost-80x24", "lost", (80, 24)),
    Image("tiny-40x10", "eager-and-stolen", (40, 10)),
    Image("explain-80x24", "no-gpu", (80, 24), ("e",)),
    Image("blue-orange-80x24", "eager-and-stolen", (80, 24), (), "blue-orange"),
    Image("light-80x24", "eager-and-stolen", (80, 24), (), "light"),
)


async def draw(image: Image) -> str:
    """The picture as SVG; blanks kept by viewers that are not browsers, no font fetched from anywhere."""
    async with running(SCENES[image.scene](0), image.size, palette=image.palette) as (app, pilot):
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
