"""Checks that no line of a template, style sheet, script or Python module is longer than the formatters' limit.

A formatter leaves a line long where it cannot break it; such a line is split by hand.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

MAX_COLUMNS = 120
SOURCES = (
    ("templates", "*.html"),
    ("static/css", "*.css"),
    ("static/js", "*.js"),
    ("detection", "*.py"),
    ("loopguard_site", "*.py"),
    ("development", "*.py"),
    ("clients/python/loopguard_client", "*.py"),
    ("clients/javascript/src", "*.ts"),
    ("clients/javascript/tests", "*.mjs"),
)
"""Folder and pattern; code of others, in `static/vendor`, is not ours to format."""
_FREE = re.compile(r"/migrations/|/secret_rules\.py$")
"""Generated code, and a table of regular expressions."""
_REMARK = re.compile(r"  # (?:noqa|type:).*")
"""Remarks to linters stay on their line."""


def sources(root: Path) -> list[Path]:
    """Return the templates, style sheets, scripts and modules of a checkout, sorted."""
    found = (path for folder, pattern in SOURCES for path in root.joinpath(folder).rglob(pattern))
    return sorted(path for path in found if not _FREE.search(path.as_posix()))


def long_lines(paths: Iterable[Path]) -> list[str]:
    """Return one sentence for each line over `MAX_COLUMNS`."""
    return [
        f"{path}:{number}: {len(line)} columns; at most {MAX_COLUMNS} are allowed."
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(_REMARK.sub("", line)) > MAX_COLUMNS
    ]


if __name__ == "__main__":
    paths = sources(Path(__file__).resolve().parents[1])
    sentences = long_lines(paths)
    print("\n".join(sentences) or f"No line of {len(paths)} files is longer than {MAX_COLUMNS} columns.")
    sys.exit(1 if sentences else 0)
