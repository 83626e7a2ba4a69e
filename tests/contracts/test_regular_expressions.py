"""No input makes a pattern of the product take more than linear work: steps are counted, not timed."""

import ast
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import detection
import loopguard_site
from tests.contracts.regex_steps import StepCounter, TooManySteps, sample

ROOT = Path(__file__).resolve().parents[2]
SHORT, LONG = 60, 150
GROWTH = 1.25 * LONG / SHORT
"""Linear work grows by 2.5 here, quadratic work by 6."""
CHEAP = 8 * SHORT
"""Quadratic work comes to more steps than these."""
HOSTILE = [
    "-eyJ", "eyJ.", "eyJaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "bearer ", "basic  ", "a:", "://a:", "@", "1 ", "1-", "12:34",
    "password=", "a_", "-", "a", "A", " ", "\t", "\n", "<", "<a ", "(", "!/set(", '"', '\\"', "{", "[", "1", ".1", "0x", "\x1b[",
    "\x1b[1 ", "%", "$", "${", "/", "é", "Mon Jan 1 ", "not ", "pid ", "req-", ">", ">>", "__",
]  # fmt: skip


def patterns():
    """Every compiled pattern that a module of the product holds, by where it stands."""
    found: dict[Any, Any] = {}
    for package in (detection, loopguard_site):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" in module.name or module.name.endswith(
                (".asgi", ".wsgi", ".celery", ".__main__")
            ):
                continue
            loaded = importlib.import_module(module.name)
            for name, value in vars(loaded).items():
                for index, one in enumerate(flat(value)):
                    found.setdefault(one, f"{module.name}.{name}{f'[{index}]' if index else ''}")
    return {where: pattern for pattern, where in found.items()}


def flat(value):
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from flat(one)
    elif isinstance(value, dict):
        yield from flat(list(value.values()))


PATTERNS = patterns()


@pytest.fixture(autouse=True)
def deep_enough():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)


def beginnings(pattern):
    """What the pattern would like to see, cut off here and there: the usual material of an attack."""
    text = sample(pattern)[:60]
    return {text[:end] for end in {1, len(text) // 4, len(text) // 2, len(text) - 1, len(text)} if end > 0}


@pytest.mark.promise("SEC-18")
@pytest.mark.parametrize("where", sorted(PATTERNS))
def test_work_grows_no_faster_than_the_text(where):
    pattern = PATTERNS[where]
    own = beginnings(pattern)
    texts = [("", piece, "") for piece in {*HOSTILE, *own}] + [
        (sample(pattern)[:8], piece, "\x00") for piece in own
    ]
    for lead, piece, tail in sorted(texts):
        few = steps(pattern, lead + (piece * SHORT)[:SHORT] + tail)
        if few < CHEAP:
            continue
        many = steps(pattern, lead + (piece * LONG)[:LONG] + tail)
        assert many <= GROWTH * few + 2000, f"{where} on {piece!r}: {few} steps, then {many}"


def steps(pattern, text):
    try:
        return StepCounter(pattern, 3_000_000).scan(text)
    except TooManySteps:
        return 3_000_000


def test_the_step_count_detects_a_backtracking_pattern():
    pattern = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")
    assert steps(pattern, "-eyJ" * (LONG // 4)) > 2 * GROWTH * steps(pattern, "-eyJ" * (SHORT // 4))


@pytest.mark.parametrize("where", sorted(PATTERNS))
def test_the_counter_finds_what_the_real_matcher_finds(where):
    pattern = PATTERNS[where]
    for text in (
        sample(pattern),
        f"x {sample(pattern)} y",
        "eyJhbGciOiJI.eyJzdWIiOiIx.abc",
        "pid 12 in 0.5 s",
    ):
        place, end = StepCounter(pattern, 3_000_000).first(text)
        found = pattern.search(text.encode("latin-1") if isinstance(pattern.pattern, bytes) else text)
        assert (place, end) == (found.span() if found else (None, None))


COMPILES = {("detection/engine/tables/__init__.py", "compiled")}
"""Functions whose callers keep what they return in attributes of modules."""


def test_patterns_are_compiled_where_the_count_sees_them():
    """A pattern inside a function would escape the count above."""
    hidden = []
    for path in [*ROOT.glob("detection/**/*.py"), *ROOT.glob("loopguard_site/**/*.py")]:
        source = path.read_text(encoding="utf-8")
        if not re.search(r"\bre\.(?!escape)", source):
            continue
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (str(path.relative_to(ROOT)), function.name) in COMPILES:
                continue
            hidden += [
                f"{path.relative_to(ROOT)}:{node.lineno}"
                for node in ast.walk(function)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr != "escape"
            ]
    assert hidden == []
