"""Plain tables: word lists, patterns, the habits of hosts and formats, and the secrets that redaction reads of.

Each `.toml` file is one table, and each `[[row]]` of it one fact. A row has its data, examples that must match
(`match`), and examples that must not although they come close (`no_match`); a test runs them all. Whatever is new about
a tool, a host or a format is a new row and no new code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@cache
def load_table(name: str) -> dict[str, Any]:
    """Return a table by the name of its file, without the extension; read once."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def table(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, in order."""
    return [*load_table(name)["row"]]


@cache
def hosts() -> tuple[str, ...]:
    """Return the names of the tables of hosts."""
    return tuple(sorted(f"hosts/{path.stem}" for path in (FOLDER / "hosts").glob("*.toml")))


def rows(name: str, **wanted: str) -> list[Mapping[str, Any]]:
    """Return the rows of a table whose columns have these values."""
    return [row for row in table(name) if all(row.get(column) == value for column, value in wanted.items())]


def words(name: str, column: str = "words", **wanted: str) -> tuple[str, ...]:
    """Return the words of these rows, in order."""
    return tuple(word for row in rows(name, **wanted) for word in row[column])


def pattern(found: Iterable[Mapping[str, Any]], *, at_start: bool = False) -> re.Pattern[str]:
    """Return one pattern for the patterns of these rows; upper and lower case are the same.

    Parameters
    ----------
    at_start : bool
        It only matches at the beginning of a text, so that no other place is tried.
    """
    either = "|".join(f"(?:{row['pattern']})" for row in found)
    return compiled(rf"(?i)\A(?:{either})" if at_start else f"(?i){either}")


def compiled(text: str) -> re.Pattern[str]:
    """Return a pattern of a row. Modules keep it in an attribute, where a test counts its steps."""
    return re.compile(text)


def parts(found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return lower-case texts of which each match of these rows contains one: a fast check before a slow pattern."""
    known = dict.fromkeys(part for row in found for part in row["parts"])
    # Whatever contains `no such file` contains `no such`.
    return tuple(part for part in known if not any(one in part and one != part for one in known))
