"""Reads statements on tenants' tables as a server does that keeps each project on one node; Citus is what it was tried on.

Three things can be said of a statement:

- *One node*: every table is named by the value of its `project_id`, in its own query, by a value or by a join with a
  table that is. What an outer query says of the project does not count inside: the node is looked up before the
  planner carries it there.
- *All nodes*: it looks across projects, and each node can do its part: `AllNodes`.
- *Rejected*: Citus refuses it, or LoopGuard does not want it: `Rejected`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pglast
import pglast.ast
import pglast.enums

ast: Any = pglast.ast
enums: Any = pglast.enums
_MODIFYING = (ast.InsertStmt, ast.UpdateStmt, ast.DeleteStmt, ast.MergeStmt)
_READ = (ast.SelectStmt, *_MODIFYING, ast.CopyStmt)
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?s|%%")
_LIST = re.compile(r"\bIN \(%s(?:, %s)+\)")
_PROJECT = "detection_project"
_VALUE, _VALUES = "", "one of several"
"""What a table's project is equal to, besides that of another table."""
_OF_ANOTHER_SERVER = frozenset(
    (
        "clock_timestamp", "gen_random_uuid", "nextval", "now", "pg_current_snapshot", "pg_current_xact_id",
        "pg_current_xact_id_if_assigned", "random", "statement_timestamp", "timeofday", "transaction_timestamp",
        "txid_current", "txid_current_if_assigned", "txid_current_snapshot",
    )
)  # fmt: skip
"""Functions of time, transactions and chance: the server that plans a write computes them, not that of the row."""

Fact = tuple[str, str]
"""Two tables with the same project, by their aliases; or one and `_VALUE`, `_VALUES`, or something outside, as `.x`."""


class AllNodes(NamedTuple):
    """A statement without the project of some tables, which every node can run for its rows."""

    command: str
    tables: str


class Rejected(NamedTuple):
    """A statement that cannot be sent, and why."""

    command: str
    why: str


def read(
    text: str, tenants: frozenset[str], beside: frozenset[str] = frozenset()
) -> AllNodes | Rejected | None:
    """Return what is to be said of a statement; None if it is for one node, or touches no table of tenants.

    Parameters
    ----------
    text
        As given to a cursor, with placeholders.
    tenants
        The tables of tenants.
    beside
        Tables that are whole on one node, and whose writes are planned as those of tenants are.
    """
    return _read(_LIST.sub("IN (%s, %s)", text), tenants, beside)


@cache
def _read(text: str, tenants: frozenset[str], beside: frozenset[str]) -> AllNodes | Rejected | None:
    if "force_generic_plan" in text:
        return Rejected("SET", "a plan without values has no node")
    if not any(table in text for table in tenants | beside):
        return None
    parsed = pglast.parse_sql(_PLACEHOLDER.sub(lambda one: "%" if one[0] == "%%" else "$1", text))
    if len(parsed) > 1:
        return Rejected("SEVERAL", "several commands in one text")
    statement = parsed[0].stmt
    command = type(statement).__name__.removesuffix("Stmt").upper()
    if isinstance(statement, ast.CreateTrigStmt):
        return Rejected(command, "a trigger on a table with parts on several nodes")
    if not isinstance(statement, _READ):
        return None
    checker = _Checker(tenants, beside)
    checker.visit(statement, frozenset(), frozenset())
    if checker.unnamed and checker.has_named:
        checker.reject(f"{' '.join(sorted(checker.unnamed))}: no project, beside tables that have it")
    if checker.is_spread and next(_find(statement, ast.GroupingSet, below_queries=True), None) is not None:
        checker.reject("grouping sets of rows without the project")
    if checker.why:
        return Rejected(command, checker.why)
    return AllNodes(command, " ".join(sorted(checker.unnamed))) if checker.unnamed else None


class _Checker:
    """Walks through a statement, and collects the tables without a project and the first reason to reject it."""

    def __init__(self, tenants: frozenset[str], beside: frozenset[str]) -> None:
        self._tenants, self._planned = tenants, tenants | beside
        self.unnamed: set[str] = set()
        self.has_named = self.is_spread = False
        self.why = ""

    def reject(self, why: str) -> None:
        """Note why the statement is rejected, if that is the first reason."""
        self.why = self.why or why

    def visit(
        self, node: Any, known: frozenset[str], outside: frozenset[str], *, is_lateral: bool = False
    ) -> None:
        """Check all queries below a node.

        Parameters
        ----------
        known
            The names of common table expressions.
        outside
            The aliases of tenants' tables of the queries around it.
        """
        if isinstance(node, tuple | list):
            for one in node:
                self.visit(one, known, outside)
        elif isinstance(node, ast.Node):
            if isinstance(node, _READ):
                known, outside = self._query(node, known, outside, is_lateral=is_lateral)
            for name in node:
                is_lateral = isinstance(node, ast.RangeSubselect) and bool(node.lateral)
                self.visit(getattr(node, name), known, outside, is_lateral=is_lateral)

    def _query(
        self, node: Any, known: frozenset[str], outside: frozenset[str], *, is_lateral: bool
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Check one query without its subqueries; return what these know and what is outside of them."""
        clause = getattr(node, "withClause", None)
        if clause is not None:
            known |= {one.ctename for one in clause.ctes}
        tables: dict[str, str] = {}
        joined: list[Any] = []
        target: Any = getattr(node, "relation", None)
        sources = [
            *_items(node, "fromClause"),
            *_items(node, "usingClause"),
            getattr(node, "sourceRelation", None),
        ]
        is_write = target is not None and target.relname in self._tenants
        if isinstance(node, ast.UpdateStmt | ast.DeleteStmt | ast.MergeStmt):
            sources.append(target)
        elif is_write:  # an insert, or a copy
            given = [
                getattr(one, "name", None) or one.sval
                for one in _items(node, "cols") or _items(node, "attlist")
            ]
            if "project_id" not in given:
                self.reject(f"{target.relname}: rows without their project")
        for source in sources:
            self._relations(source, known, tables, joined)
        joined += [getattr(node, "whereClause", None), getattr(node, "joinCondition", None)]
        facts = {fact for condition in joined for fact in self._facts(condition, tables)}
        own = {alias: table for alias, table in tables.items() if table in self._tenants}
        named = _connected({_VALUE}, facts)
        unnamed = {alias: table for alias, table in own.items() if alias not in named}
        self.has_named |= len(unnamed) < len(own)
        self.unnamed |= {
            table for alias, table in unnamed.items() if alias not in _connected({_VALUE, _VALUES}, facts)
        }
        if target is not None and target.relname in self._planned:
            self._computed_elsewhere(node)
        if unnamed:
            self.is_spread = True
            self._across_nodes(node, [*unnamed], facts, is_lateral=is_lateral)
            columns = [
                one.fields for one in _find(node, ast.ColumnRef, below_queries=True) if len(one.fields) > 1
            ]
            used = {f".{fields[0].sval}" for fields in columns if fields[0].sval in outside - {*tables}}
            if used.isdisjoint(_connected({*unnamed}, facts)) and used:
                self.reject("a subquery that depends on another column than the project")
        if not own and any(isinstance(one, ast.RangeFunction | ast.RangeSubselect) for one in sources):
            beside = _find(node, ast.SubLink, below_queries=False)
            if any(self._touches(one.subselect) for one in beside):
                self.reject("a subquery of a table beside a function that returns rows")
        return known, outside | {*own}

    def _across_nodes(self, node: Any, unnamed: list[str], facts: set[Fact], *, is_lateral: bool) -> None:
        """Look for what nodes cannot do by themselves, in a query with tables of no one project."""
        together = _connected({unnamed[0]}, facts)
        if not together.issuperset(unnamed):
            self.reject("tables joined by another column than their project")
        if _items(node, "lockingClause"):
            self.reject("a lock on rows without the project")
        if is_lateral and getattr(node, "limitCount", None) is not None:
            self.reject("so many rows of each project at once")
        if isinstance(node, _MODIFYING):
            columns = _find(node, ast.ColumnRef, below_queries=True)
            if any(getattr(one.fields[-1], "sval", "") == "ctid" for one in columns):
                self.reject("rows by their places, without the project")

    def _computed_elsewhere(self, node: Any) -> None:
        """Look for what the server that plans a write would compute instead of that of the row."""
        returned = getattr(node, "returningClause", None), _items(node, "returningList")
        for place, found in (
            ("ON CONFLICT", getattr(node, "onConflictClause", None)),
            ("RETURNING", returned),
            (
                "CASE",
                [
                    *_find(node, ast.CaseExpr, below_queries=True),
                    *_find(node, ast.CoalesceExpr, below_queries=True),
                ],
            ),
        ):
            for one in _find(found, ast.FuncCall, below_queries=True):
                if one.funcname[-1].sval in _OF_ANOTHER_SERVER:
                    self.reject(f"time, a transaction or chance computed in {place}")
            if next(_find(found, ast.SQLValueFunction, below_queries=True), None) is not None:
                self.reject(f"time, a transaction or chance computed in {place}")

    def _touches(self, node: Any) -> bool:
        return any(one.relname in self._tenants for one in _find(node, ast.RangeVar, below_queries=True))

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
            is_one = node.kind == enums.A_Expr_Kind.AEXPR_IN and len(node.rexpr) == 1
            return {(alias, _VALUE if is_one else _VALUES)} if alias else set()
        return set()

    def _equal(self, one: Any, other: Any, tables: dict[str, str]) -> Iterator[Fact]:
        aliases = [self._alias(side, tables) for side in (one, other)]
        if all(aliases):
            yield aliases[0] or "", aliases[1] or ""
        elif any(aliases):
            column = next(_find((one, other)[bool(aliases[0])], ast.ColumnRef, below_queries=True), None)
            # A column of a subquery, a function or an outer query: what that is equal to is not known here.
            outside = column and ".".join(("", *(getattr(part, "sval", "*") for part in column.fields[:-1])))
            yield aliases[0] or aliases[1] or "", outside or _VALUE

    def _alias(self, node: Any, tables: dict[str, str]) -> str | None:
        """Return the alias of the table whose project a column is."""
        if not isinstance(node, ast.ColumnRef) or not isinstance(node.fields[-1], ast.String):
            return None
        *qualifier, column = [one.sval for one in node.fields]
        aliases = qualifier[-1:] or [alias for alias, table in tables.items() if table != _PROJECT]
        for alias in map(str, aliases):
            table = tables.get(alias)
            if table is not None and column == ("id" if table == _PROJECT else "project_id"):
                return alias
        return None


class _Same:
    """Two tables that are joined by a common column `project_id`."""

    def __init__(self, one: str, other: str) -> None:
        self.one, self.other = one, other


def _connected(start: set[str], facts: set[Fact]) -> set[str]:
    """Return the tables with the same project as these."""
    found = {*start}
    while more := {one for fact in facts for one in fact if found & {*fact}} - found:
        found |= more
    return found


def _find(node: Any, kind: Any, *, below_queries: bool) -> Iterator[Any]:
    """Yield the nodes of a kind below a node, those of queries below it if wanted."""
    if isinstance(node, tuple | list):
        for one in node:
            yield from _find(one, kind, below_queries=below_queries)
    elif isinstance(node, ast.Node):
        if isinstance(node, kind):
            yield node
        for name in node:
            below = getattr(node, name)
            if below_queries or not isinstance(below, _READ):
                yield from _find(below, kind, below_queries=below_queries)


def _items(node: Any, name: str) -> list[Any]:
    return [*(getattr(node, name, None) or ())]
