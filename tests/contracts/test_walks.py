"""The walks in `docs/architecture.md` name functions that exist, and are as short as promised."""

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
WALKS = {
    title: re.findall(r"^\d+\. `(detection\.[\w.]+)`", text, re.MULTILINE)
    for title, text in re.findall(r"^## (Walk: .*)\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE)
}
LONGEST = {"Walk: an override takes effect": 10}
STEPS = [step for steps in WALKS.values() for step in steps]


def resolved(name: str) -> object:
    """Return what a dotted name stands for, or None."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found
    return None


@pytest.mark.parametrize("step", STEPS)
def test_every_step_of_a_walk_exists(step):
    assert resolved(step) is not None


@pytest.mark.parametrize("title", LONGEST)
def test_a_walk_has_as_few_steps_as_promised(title):
    assert 0 < len(WALKS[title]) <= LONGEST[title]
    assert len(set(WALKS[title])) == len(WALKS[title])
