"""The tables that say what a call is: each example must match its row, and what looks alike must not."""

import pytest

from detection.engine import directories
from detection.engine.arguments import essential
from detection.engine.tables import load_table
from detection.engine.tool_classes import shipped_traits


def runs_in_a_directory(row, example):
    """Whether a call depends on the directory that its host reports, or goes to another one by an option."""
    tool, arguments = example["tool"], example["arguments"]
    traits = shipped_traits(tool)
    one, two = (essential(tool, arguments, traits, cwd) for cwd in ("/one", "/two"))
    if "options" in row:
        return directories.place_of(arguments, traits.directory_arguments, "/one") != "/one"
    return one != two


READERS = {"directories": runs_in_a_directory}
ROWS = [(name, row) for name in READERS for row in load_table(name)["row"]]


@pytest.mark.parametrize(
    ("name", "row"), ROWS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(ROWS)]
)
def test_a_row_matches_its_examples_and_not_those_that_look_alike(name, row):
    assert row["match"]
    assert row["no_match"]
    assert [one for one in row["match"] if not READERS[name](row, one)] == []
    assert [one for one in row["no_match"] if READERS[name](row, one)] == []
