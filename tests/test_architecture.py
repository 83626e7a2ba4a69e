"""The walks of docs/architecture.md: every function named there exists, and none has grown beyond its bound."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = {"Event to live row": 20, "Guard call": 14, "Admin override to effect": 10}
MAX_FILES, MAX_SHAPES = 12, 6


def section(title):
    return PAGE.split(f"### {title}\n")[1].split("\n##")[0]


def hops(title):
    return re.findall(r"^\| `([\w.]+)` \|", section(title), re.MULTILINE)


def found(name):
    """The object of a dotted name, and the module that it is in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing, ".".join(parts[:length])
    raise AssertionError(f"no module in {name}")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:detection|loopguard_site)\.[\w.]+)`", PAGE))))
def test_what_the_page_names_exists(name):
    assert found(name)


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_stays_within_its_bound(title):
    assert 5 < len(hops(title)) <= WALKS[title]


def test_an_event_passes_few_files_in_few_shapes():
    steps = hops("Event to live row")
    files = {found(name)[1] for name in steps}
    assert len(files) <= MAX_FILES
    assert f"{len(steps)} hops in {len(files)} files." in section("Event to live row")
    shapes = re.search(r"Its shapes: (.*?)\.\n", section("Event to live row"), re.DOTALL)
    assert shapes is not None
    assert len(shapes[1].split(",")) <= MAX_SHAPES
