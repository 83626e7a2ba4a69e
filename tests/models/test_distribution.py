"""What docs/scaling.md says about distributing tables is what the constraints of the real tables allow."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
GROWING = (
    "session", "event", "eventkey", "trackerstate", "readmessages", "sessionfamily", "incident", "incidentactivity",
    "approval", "quarantinedevent", "gatewayrewrite", "limitnotice", "countedsession", "callcount", "attempt",
    "alertevent", "notification",
)  # fmt: skip
"""Tables that grow with the agents; a distributed database copies the others to every node."""
_UNIQUE = """
SELECT t.relname, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number
WHERE n.nspname = current_schema() AND (i.indisunique OR i.indisexclusion) AND NOT t.relispartition
GROUP BY t.relname, i.indexrelid ORDER BY 1, 2
"""
_COLUMNS = """
SELECT table_name, array_agg(column_name::text) FROM information_schema.columns
WHERE table_schema = current_schema() GROUP BY 1
"""


def rows(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def standing(column, columns, keys):
    """Whether a table can be distributed by a column: Citus demands it in every unique key."""
    if column not in columns:
        return "no column"
    without = [f"({', '.join(key)})" for key in keys if column not in key]
    return f"not in {', '.join(without)}" if without else "yes"


@pytest.mark.django_db
def test_the_page_shows_which_constraints_are_in_the_way_of_a_distribution_column():
    columns = dict(rows(_COLUMNS))
    keys: dict[Any, list[Any]] = {name: [] for name in columns}
    for table, names in rows(_UNIQUE):
        keys[table].append(names)
    expected = ["| table | `project_id` | `session_id` |", "| --- | --- | --- |"]
    for name in GROWING:
        table = f"detection_{name}"
        # The session's own id is what the others call session_id.
        session_id = "id" if name == "session" else "session_id"
        cells = (standing(column, columns[table], keys[table]) for column in ("project_id", session_id))
        expected.append(f"| `{name}` | {' | '.join(cells)} |")
    shown = re.search(r"<!-- distribution -->\n(.*?)<!-- end distribution -->", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == expected
    # If one column is in every key one day, the page has to say so.
    for at in (2, 3):
        assert any(line.split(" | ")[at - 1].strip(" |") != "yes" for line in expected[2:])
