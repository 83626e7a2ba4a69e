"""Sums over the rows of a query by several groupings at once, so that the rows are read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Case, QuerySet, When


@dataclass(frozen=True, slots=True)
class Group:
    """The rows with these values of the grouped expressions, and their sums by name; None where nothing was added."""

    values: tuple[Any, ...]
    sums: Mapping[str, Any]


def one_if(condition: Any) -> Case:
    """Return 1 for rows that match, else 0."""
    return Case(When(condition, then=1), default=0)


def added(groups: Iterable[Group], names: Iterable[str]) -> Group:
    """Return one group of all rows."""
    total: dict[str, object] = dict.fromkeys(names)
    for group in groups:
        for name, number in group.sums.items():
            if number is not None:
                total[name] = number + (total[name] or 0)
    return Group((), total)


def grouped_sums(
    rows: QuerySet[Any], groupings: Mapping[str, tuple[Any, ...]], numbers: Mapping[str, Any]
) -> dict[str, list[Group]]:
    """Add up numbers of rows, once for each grouping; one query.

    Parameters
    ----------
    groupings
        Expressions to group by, by the name of the grouping. One without expressions has one group, also without rows.
    numbers
        Expressions of one row, by name.

    Returns
    -------
    dict
        The groups of each grouping, in no order. Values are as the database returns them: times without their zone,
        JSON as text.
    """
    own = {name: [f"by_{name}_{number}" for number in range(len(of))] for name, of in groupings.items()}
    keys = {
        key: expression
        for name, of in groupings.items()
        for key, expression in zip(own[name], of, strict=True)
    }
    numbered = {f"number_{name}": expression for name, expression in numbers.items()}
    inner, parameters = rows.order_by().values(**keys, **numbered).query.sql_with_params()
    # A group has a bit for each key that is not of its grouping, the last key in the lowest.
    bits = {key: 1 << place for place, key in enumerate(reversed(keys))}
    every = sum(bits.values())
    names = {every - sum(bits[key] for key in own[name]): name for name in groupings}
    columns = ", ".join([*keys, *(f"sum({name})" for name in numbered)])
    if len(own) == 1:  # Nodes that each have a part of the rows know no grouping sets.
        which, by = "0", f"GROUP BY {', '.join(keys)}" if keys else ""
    else:
        which = f"GROUPING({', '.join(keys)})" if keys else "0"
        sets = ", ".join(f"({', '.join(of)})" for of in own.values())
        by = f"GROUP BY GROUPING SETS ({sets})"
    statement = f"SELECT {which}, {columns} FROM ({inner}) AS one {by}"  # noqa: S608 - our own words
    groups: dict[str, list[Group]] = {name: [] for name in groupings}
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        for mask, *found in cursor.fetchall():
            name = names[mask]
            values = dict(zip(keys, found, strict=False))
            sums = dict(zip(numbers, found[len(keys) :], strict=True))
            groups[name].append(Group(tuple(values[key] for key in own[name]), sums))
    return groups
