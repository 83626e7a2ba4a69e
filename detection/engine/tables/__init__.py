"""Knowledge as plain tables: words, patterns and habits of hosts, one file a subject.

Every row has an example that it must match (`matches`) and one that it must not (`not`). Adding knowledge is adding a
row.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def load_table(name: str) -> dict[str, Any]:
    """Return a table by the name of its file, without the extension. Read once, when a module is imported."""
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
