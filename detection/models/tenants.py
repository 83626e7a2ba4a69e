"""Rows that belong to a project, the tenant: each has its project, and each statement about it names that.

In the database every key between such rows begins with `project_id` (`detection.sql.postgresql.schema`). For Django the
key is `id`, which a sequence makes unique, so here is what makes Django's own statements name the project: joins,
looking up related rows, saving, deleting and reading a row again, and subqueries. Queries of our own name it with
`filter(project_id=…)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from django.apps import apps
from django.db import models
from django.db.models.expressions import Col, ResolvedOuterRef
from django.db.models.fields.related_descriptors import (
    ForwardManyToOneDescriptor,
    ForwardOneToOneDescriptor,
)
from django.db.models.fields.related_lookups import RelatedExact, RelatedIn
from django.db.models.lookups import Exact, In
from django.db.models.sql import Query
from django.db.models.sql.where import AND, WhereNode

_Set = TypeVar("_Set")
_Get = TypeVar("_Get")


class ProjectKey(models.ForeignKey[_Set, _Get], Generic[_Set, _Get]):
    """The project of a tenant's row. Declared before all other fields. The primary key is its index."""

    def __init__(self, *arguments: Any, db_index: bool = False, **options: Any) -> None:
        super().__init__(*arguments, db_index=db_index, **options)


class TenantModel(models.Model):
    """A row of a project, with a field `project` of type `ProjectKey`."""

    project_id: Any

    class Meta:
        abstract = True

    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete the row; rows that belong to it go with it, in the database."""
        return _rows_of(self).using(using).filter(pk=self.pk).delete()

    def refresh_from_db(self, using: Any = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Read the row, or some fields, again."""
        super().refresh_from_db(using, fields, _rows_of(self, from_queryset))

    def _do_update(self, base_qs: Any, *arguments: Any) -> Any:
        return super()._do_update(_rows_of(self, base_qs), *arguments)


def projects_of(rows: models.QuerySet[Any]) -> list[int]:
    """Return the projects of some rows, so that what follows, such as a lock, can name one after the other.

    The query itself is of all projects, which for tables on several nodes means: of all nodes. So it is nothing for a
    request that an agent waits for.
    """
    return [*rows.order_by("project_id").values_list("project_id", flat=True).distinct()]


def _rows_of(instance: TenantModel, rows: Any = None) -> models.QuerySet[Any]:
    """Return the rows of the instance's project, or those of a query that are."""
    rows = type(instance)._base_manager if rows is None else rows
    return rows.filter(project_id=instance.project_id)  # type: ignore[no-any-return]


class _TakesProject:
    """A new row takes its project from the row that it belongs to."""

    def __set__(self, instance: Any, value: Any) -> None:
        super().__set__(instance, value)  # type: ignore[misc]
        if value is not None and instance.project_id is None:
            instance.project_id = value.project_id

    def get_prefetch_querysets(self, instances: list[Any], querysets: Any = None) -> Any:
        rows = querysets[0] if querysets else self.get_queryset()  # type: ignore[attr-defined]
        rows = rows.filter(project_id__in={one.project_id for one in instances})
        return super().get_prefetch_querysets(instances, [rows])  # type: ignore[misc]


class _ForwardDescriptor(_TakesProject, ForwardManyToOneDescriptor):  # type: ignore[type-arg]
    pass


class _ForwardOneToOneDescriptor(_TakesProject, ForwardOneToOneDescriptor):  # type: ignore[type-arg]
    pass


class _TenantRelation(models.ForeignKey[_Set, _Get]):
    """What references to tenants' rows have in common. `on_delete` is carried out by the database."""

    def contribute_to_class(self, *arguments: Any, **options: Any) -> None:
        super().contribute_to_class(*arguments, **options)
        self.on_delete = self.remote_field.on_delete
        self.remote_field.on_delete = models.DO_NOTHING

    def deconstruct(self) -> Any:
        name, path, arguments, options = super().deconstruct()
        return (
            name,
            path,
            arguments,
            options | {"on_delete": getattr(self, "on_delete", options["on_delete"])},
        )

    def get_extra_descriptor_filter(self, instance: Any) -> dict[str, Any]:
        return {"project_id": instance.project_id}

    def get_forward_related_filter(self, obj: Any) -> dict[str, Any]:
        return super().get_forward_related_filter(obj) | {"project_id": obj.project_id}

    def get_extra_restriction(self, alias: str | None, related_alias: str) -> Any:
        own = _project(self.model, related_alias)
        # In the subquery of an exclusion, the other table is outside.
        other = ResolvedOuterRef("project_id") if alias is None else _project(self.related_model, alias)
        return _ProjectExact(own, other)


class TenantForeignKey(_TenantRelation[_Set, _Get], Generic[_Set, _Get]):
    """A reference to a row of the same project."""

    forward_related_accessor_class = _ForwardDescriptor


class TenantOneToOneField(_TenantRelation[_Set, _Get], models.OneToOneField[_Set, _Get], Generic[_Set, _Get]):
    """A reference of one row at most to a row of the same project; if it is not the key, a constraint says so."""

    forward_related_accessor_class = _ForwardOneToOneDescriptor

    @property
    def unique(self) -> bool:
        """Whether the column alone is: as a key of the model."""
        return bool(self.primary_key)


@cache
def tenant_tables() -> frozenset[str]:
    """Return the names of the tables of tenants' rows."""
    return frozenset(model._meta.db_table for model in apps.get_models() if issubclass(model, TenantModel))


def _project(model: Any, alias: str) -> Any:
    return model._meta.get_field("project").get_col(alias)


@ProjectKey.register_lookup
class _ProjectExact(RelatedExact):
    """The project of a row; in a subquery its value, if a surrounding query names that for the other row.

    A database that keeps projects on different nodes finds the node of each table by a value, or by a join with a table
    of the same query.
    """

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        value = _known(self.rhs, getattr(connection, "compiled_queries", ())[:-1])
        if value is not None:
            return compiler.compile(Exact(self.lhs, value))
        return super().as_sql(compiler, connection)


def _known(project: Any, surrounding: Sequence[Any]) -> int | None:
    """Return the value of a column `project_id` that surrounding queries name, the outermost first."""
    if not isinstance(project, Col):
        return None
    named: dict[str, int] = {}
    for place, query in enumerate(surrounding):
        named |= _named(query.where, surrounding[:place])
    return named.get(project.alias)


def _named(where: Any, surrounding: Sequence[Any]) -> dict[str, int]:
    """Return the projects that conditions name by value, by the alias of the table."""
    named: dict[str, int] = {}
    for one in where.children if where.connector == AND and not where.negated else ():
        value = None
        if isinstance(one, WhereNode):
            named |= _named(one, surrounding)
        elif isinstance(one, _NamesProject) and isinstance(one.lhs, Col):
            value = one.value(surrounding)
        elif isinstance(one, Exact) and isinstance(one.lhs, Col) and isinstance(one.lhs.target, ProjectKey):
            value = one.rhs if isinstance(one.rhs, int) else _known(one.rhs, surrounding)
        elif isinstance(one, In) and isinstance(one.lhs, Col) and isinstance(one.lhs.target, ProjectKey):
            value = (
                next(iter(one.rhs)) if isinstance(one.rhs, list | tuple | set) and len(one.rhs) == 1 else None
            )
        if value is not None:
            named[one.lhs.alias] = value
    return named


class _NamesProject:
    """A look-up by related rows that names their projects, too."""

    lhs: Any

    def __init__(self, lhs: Any, rhs: Any) -> None:
        given: Iterable[Any] = rhs if isinstance(rhs, list | tuple | set | models.QuerySet) else (rhs,)
        given = () if isinstance(rhs, models.QuerySet) and rhs._result_cache is None else [*given]
        of_tenant = given and all(isinstance(one, TenantModel) for one in given)
        self._projects = {one.project_id for one in given} if of_tenant else set()
        super().__init__(lhs, rhs)  # type: ignore[call-arg]

    @property
    def _other(self) -> Any:
        """The project of the other row, if that is one of the statement."""
        rhs: Any = getattr(self, "rhs", None)
        is_row = isinstance(rhs, Col) and issubclass(rhs.target.model, TenantModel)
        return _project(rhs.target.model, rhs.alias) if is_row else None

    def value(self, surrounding: Sequence[Any]) -> int | None:
        """Return the project, if there is one and it is known."""
        rhs = getattr(self, "rhs", None)
        if isinstance(rhs, Query):
            return _named(rhs.where, surrounding).get(str(rhs.base_table))
        return next(iter(self._projects)) if len(self._projects) == 1 else _known(self._other, surrounding)

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        text, parameters = super().as_sql(compiler, connection)  # type: ignore[misc]
        if not isinstance(self.lhs, Col):
            return text, parameters
        own, other = _project(self.lhs.target.model, self.lhs.alias), self._other
        value = self.value(getattr(connection, "compiled_queries", ())[:-1])
        if value is not None:
            more, values = compiler.compile(Exact(own, value))
        elif self._projects:
            more, values = compiler.compile(In(own, [*self._projects]))
        elif other is not None:
            more, values = compiler.compile(_ProjectExact(own, other))
        else:
            return text, parameters
        return f"({more} AND {text})", (*values, *parameters)


@_TenantRelation.register_lookup
class _RelatedExact(_NamesProject, RelatedExact):
    pass


@_TenantRelation.register_lookup
class _RelatedIn(_NamesProject, RelatedIn):
    pass
