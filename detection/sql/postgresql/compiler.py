"""Django's compilers, which tell subqueries what they are part of; see `detection.models.tenants`."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import compiler


class _TellsSubqueries:
    """Keeps its query in `connection.compiled_queries` while it is compiled, after those that surround it."""

    connection: Any
    query: Any

    def as_sql(self, *arguments: Any, **options: Any) -> Any:
        surrounding = self.connection.compiled_queries
        surrounding.append(self.query)
        try:
            return super().as_sql(*arguments, **options)  # type: ignore[misc]
        finally:
            surrounding.pop()


class SQLCompiler(_TellsSubqueries, compiler.SQLCompiler):
    """Of selects."""


class SQLInsertCompiler(_TellsSubqueries, compiler.SQLInsertCompiler):
    """Of inserts."""


class SQLDeleteCompiler(_TellsSubqueries, compiler.SQLDeleteCompiler):
    """Of deletes."""


class SQLUpdateCompiler(_TellsSubqueries, compiler.SQLUpdateCompiler):
    """Of updates."""


class SQLAggregateCompiler(_TellsSubqueries, compiler.SQLAggregateCompiler):
    """Of aggregates."""
