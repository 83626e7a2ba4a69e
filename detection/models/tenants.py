"""Rows that belong to a project, the tenant: each has its project, and each statement about it names that.

In the database every key between such rows begins with `project_id` (`detection.sql.postgresql.schema`). For Django the
key is `id`, which a sequence makes unique, so here is what makes Django's own statements name the project: joins,
looking up related rows, saving, deleting and reading a row again. Queries of our own name it with
`filter(project_id=…)`.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        return Exact(own, other)


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


class _NamesProject:
    """A look-up by related rows that names their projects, too."""

    lhs: Any

    def __init__(self, lhs: Any, rhs: Any) -> None:
        given: Iterable[Any] = rhs if isinstance(rhs, list | tuple | set | models.QuerySet) else (rhs,)
        given = () if isinstance(rhs, models.QuerySet) and rhs._result_cache is None else [*given]
        of_tenant = given and all(isinstance(one, TenantModel) for one in given)
        self._projects = {one.project_id for one in given} if of_tenant else set()
        super().__init__(lhs, rhs)  # type: ignore[call-arg]

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        text, parameters = super().as_sql(compiler, connection)  # type: ignore[misc]
        if not self._projects or not isinstance(self.lhs, Col):
            return text, parameters
        named = In(_project(self.lhs.target.model, self.lhs.alias), [*self._projects])
        more, values = compiler.compile(named)
        return f"({more} AND {text})", (*values, *parameters)


@_TenantRelation.register_lookup
class _RelatedExact(_NamesProject, RelatedExact):
    pass


@_TenantRelation.register_lookup
class _RelatedIn(_NamesProject, RelatedIn):
    pass
