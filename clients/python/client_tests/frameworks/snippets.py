"""Snippets of the documentation, which tests run as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[4] / "docs" / "client.md"


def snippet(module: str) -> dict[str, Any]:
    """Run the snippet of the page that imports from a module, and return its names."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [block for block in blocks if f"from {module}" in block]
    assert len(found) == 1
    names: dict[str, Any] = {}
    exec(found[0], names)
    return names
