"""No two classes of the product share a name: a name in code, a traceback or a review means one thing."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED_BY_DJANGO = {"Command", "Meta"}
"""Classes that Django finds by their name."""


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for package in ("detection", "loopguard_site"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and node.name not in NAMED_BY_DJANGO:
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
