"""What detectors read of the policy of a call; `policy` resolves it from the settings that detectors declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from detection.engine.tool_classes import ToolTraits

# ruff: noqa: D102 - `Policy`, which implements it, describes the attributes


class PolicySettings(Protocol):
    """The part of a `Policy` that detectors read."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def sources(self) -> Mapping[str, str]: ...
    @property
    def traits(self) -> ToolTraits: ...
    @property
    def plans(self) -> dict[str, tuple[Any, ...]]: ...
    @property
    def reads_plainly(self) -> bool: ...

    def for_tool(self, tool: str) -> PolicySettings: ...
