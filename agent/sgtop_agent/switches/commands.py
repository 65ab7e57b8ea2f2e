"""The operations of switches and actions, for as long as this agent's hooks are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ops import LATER
from .actions import Actions
from .control import SwitchControl

if TYPE_CHECKING:
    from ..serve import Agent

__all__ = ["LATER", "start"]


def start(agent: Agent) -> SwitchControl:
    """Register everything."""
    control = SwitchControl(agent)
    control.register()
    Actions(agent).register()
    return control
