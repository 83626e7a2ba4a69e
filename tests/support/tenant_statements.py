"""Finds statements that touch a tenant's table without naming the project of its rows.

A table is named by a condition on its `project_id`, by the value of that column in an insert, or by a join with a table
that is named. Subqueries stand for themselves: what an outer query says of the project counts inside by its columns only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pglast
import pglast.ast
import pglast.enums

ast: Any = pglast.ast
enums: Any = pglast.enums
_READ = (ast.SelectStmt, ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt, ast.MergeStmt, ast.CopyStmt)
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?s|%%")
_LIST = re.compile(r"\bIN \(%s(?:, %s)+\)")
_PROJECT = "detection_project"
_BY_VALUE = ""
"""Stands for whatever a table's project is equal to, besides that of another table of the query."""

Fact = tuple[str, str]
"""Two tables with the same project, by their aliases; the second one can be `_BY_VALUE`."""


def unnamed_tables(text: str, tenants: frozenset[str]) -> tuple[str, str] | None:
    """Return the command and the tables that a statement touches without their project; None if there is none.

    Parameters
    ----------
    text
        As given to a cursor, with placeholders.
    tenants
        The tables of tenants.
    """
    return _unnamed(_LIST.sub("IN (%s)", text), tenants)


@cache
def _unnamed(text: str, tenants: frozenset[str]) -> tuple[str, str] | None:
    if not any(table in text for table in tenants):
        return None
    sql = _PLACEHOLDER.sub(lambda found: "%" if found[0] == "%%" else "$1", text)
    found: set[str] = set()
    command = ""
    for raw in pglast.parse_sql(sql):
        if isinstance(raw.stmt, _READ):
            command = type(raw.stmt).__name__.removesuffix("Stmt").upper()
            _Checker(tenants, found).visit(raw.stmt, frozenset())
    return (command, " ".join(sorted(found))) if found else None


class _Checker:
    """Walks through a statement and collects the tables without a project."""

    def __init__(self, tenants: frozenset[str], found: set[str]) -> None:
        self._tenants, self._found = tenants, found

    def visit(self, node: Any, known: frozenset[str]) -> None:
        """Check all queries below a node; `known` are the names of common table expressions."""
        if isinstance(node, tuple | list):
            for one in node:
                self.visit(one, known)
        elif isinstance(node, ast.Node):
            if isinstance(node, _READ):
                known = self._query(node, known)
            for name in node:
                self.visit(getattr(node, name), known)

    def _query(self, node: Any, known: frozenset[str]) -> frozenset[str]:
        """Check one query without its subqueries; return the names that these know."""
        clause = getattr(node, "withClause", None)
        if clause is not None:
            known |= {one.ctename for one in clause.ctes}
        tables: dict[str, str] = {}
        joined: list[Any] = []
        sources = [
            *_items(node, "fromClause"),
            *_items(node, "usingClause"),
            getattr(node, "sourceRelation", None),
        ]
        target = getattr(node, "relation", None)
        if isinstance(node, ast.UpdateStmt | ast.DeleteStmt | ast.MergeStmt):
            sources.append(target)
        elif target is not None and target.relname in self._tenants:  # an insert, or a copy
            columns = [
                getattr(one, "name", None) or one.sval
                for one in _items(node, "cols") or _items(node, "attlist")
            ]
            if "project_id" not in columns:
                self._found.add(target.relname)
        for source in sources:
            self._relations(source, known, tables, joined)
        joined += [getattr(node, "whereClause", None), getattr(node, "joinCondition", None)]
        facts = {fact for condition in joined for fact in self._facts(condition, tables)}
        named = {_BY_VALUE}
        while more := {one for fact in facts for one in fact if named & {*fact}} - named:
            named |= more
        self._found |= {
            table for alias, table in tables.items() if table in self._tenants and alias not in named
        }
        return known

    def _relations(self, node: Any, known: frozenset[str], tables: dict[str, str], joined: list[Any]) -> None:
        if isinstance(node, ast.JoinExpr):
            before = {*tables}
            self._relations(node.larg, known, tables, joined)
            left = {*tables} - before
            self._relations(node.rarg, known, tables, joined)
            joined.append(node.quals)
            if any(one.sval == "project_id" for one in node.usingClause or ()):
                joined += [_Same(one, other) for one in left for other in {*tables} - before - left]
        elif isinstance(node, ast.RangeVar) and node.relname in ({*self._tenants, _PROJECT} - known):
            tables[node.alias.aliasname if node.alias else node.relname] = node.relname

    def _facts(self, node: Any, tables: dict[str, str]) -> set[Fact]:
        if isinstance(node, _Same):
            return {(node.one, node.other)}
        if isinstance(node, ast.BoolExpr):
            parts = [self._facts(one, tables) for one in node.args]
            if node.boolop == enums.BoolExprType.AND_EXPR:
                return set().union(*parts)
            return set.intersection(*parts) if node.boolop == enums.BoolExprType.OR_EXPR else set()
        if not isinstance(node, ast.A_Expr) or [one.sval for one in node.name] != ["="]:
            return set()
        if node.kind == enums.A_Expr_Kind.AEXPR_OP:
            pairs = [(node.lexpr, node.rexpr)]
            if isinstance(node.lexpr, ast.RowExpr) and isinstance(node.rexpr, ast.RowExpr):
                pairs = [*zip(node.lexpr.args, node.rexpr.args, strict=True)]
            return {fact for one, other in pairs for fact in self._equal(one, other, tables)}
        if node.kind in (enums.A_Expr_Kind.AEXPR_IN, enums.A_Expr_Kind.AEXPR_OP_ANY):
            alias = self._alias(node.lexpr, tables)
            return {(alias, _BY_VALUE)} if alias else set()
        return set()

    def _equal(self, one: Any, other: Any, tables: dict[str, str]) -> Iterator[Fact]:
        aliases = [self._alias(side, tables) for side in (one, other)]
        if all(aliases):
            yield aliases[0] or "", aliases[1] or ""
        elif any(aliases):
            # The rest is a value, or a column of a subquery or of an outer query, which are checked by themselves.
            yield aliases[0] or aliases[1] or "", _BY_VALUE

    def _alias(self, node: Any, tables: dict[str, str]) -> str | None:
        """Return the alias of the table whose project a column is."""
        if not isinstance(node, ast.ColumnRef) or not isinstance(node.fields[-1], ast.String):
            return None
        *qualifier, column = [one.sval for one in node.fields]
        aliases = qualifier[-1:] or [alias for alias, table in tables.items() if table != _PROJECT]
        for alias in map(str, aliases):
            table = tables.get(alias)
            if table is not None and column in (("id", "slug") if table == _PROJECT else ("project_id",)):
                return alias
        return None


class _Same:
    """Two tables that are joined by a common column `project_id`."""

    def __init__(self, one: str, other: str) -> None:
        self.one, self.other = one, other


def _items(node: Any, name: str) -> list[Any]:
    return [*(getattr(node, name, None) or ())]
