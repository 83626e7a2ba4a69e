"""Snippets of the documentation and of Connect, which tests run as they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "client.md"
GUIDES = ROOT / "detection" / "console" / "integrations" / "guides.py"


def snippet(module: str) -> dict[str, Any]:
    """Run the snippet of the page that imports from a module, and return its names."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [block for block in blocks if f"from {module}" in block]
    assert len(found) == 1
    names: dict[str, Any] = {}
    exec(found[0], names)
    return names


def of_connect(guide: str) -> str:
    """Return the lines that Connect shows for an adapter; its guides cannot be imported beside a framework."""
    for node in ast.walk(ast.parse(GUIDES.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_adapter":
            name, _, _, module, imported, attach = (ast.literal_eval(one) for one in node.args)
            if name == guide:
                imports = (
                    f"from loopguard_client import Guard\nfrom loopguard_client.{module} import {imported}\n"
                )
                return f'{imports}\nguard = Guard(agent="my-agent")\n{attach}'
    raise LookupError(guide)
