"""What travels has a type, and no import for types alone hides a circle of modules."""

from __future__ import annotations

import re
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
MAX_OPEN_DICTIONARIES = 250
"""Uses of `dict[str, Any]` in the product. Only where JSON really is open does a reader have to look up which keys a
dictionary has, and only there does the type checker find no mistyped one; so this number may shrink, and not grow."""


def test_few_dictionaries_have_values_of_any_type():
    files = [path for name in ("detection", "loopguard_site") for path in (ROOT / name).rglob("*.py")]
    assert (
        sum(len(re.findall(r"dict\[str, Any\]", path.read_text())) for path in files) <= MAX_OPEN_DICTIONARIES
    )


def hidden_circles(*packages: str) -> list[str]:
    """Return the imports for types alone of modules that import the importing one, with the way back."""
    graph, seen_by_python = (
        grimp.build_graph(*packages, exclude_type_checking_imports=excluded, cache_dir=None)
        for excluded in (False, True)
    )
    return [
        " -> ".join((module, *way))
        for module in sorted(graph.modules)
        for target in sorted(
            graph.find_modules_directly_imported_by(module)
            - seen_by_python.find_modules_directly_imported_by(module)
        )
        if (way := graph.find_shortest_chain(target, module))
    ]


def test_no_import_for_types_hides_a_circle():
    assert hidden_circles("detection", "loopguard_site", "development") == []
    assert hidden_circles("loopguard_client") == []


def test_a_hidden_circle_is_found(tmp_path, monkeypatch):
    package = tmp_path / "circular_sample"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "low.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circular_sample import between, other\n"
    )
    (package / "between.py").write_text("from circular_sample import high\n")
    (package / "high.py").write_text("from circular_sample import low\n")
    (package / "other.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert hidden_circles("circular_sample") == [
        "circular_sample.low -> circular_sample.between -> circular_sample.high -> circular_sample.low"
    ]
