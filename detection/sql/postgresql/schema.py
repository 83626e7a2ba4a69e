"""Creates tables whose keys begin with the project, for models with a `ProjectKey`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.backends.ddl_references import Columns
from django.db.backends.postgresql import schema
from django.db.models import CASCADE, CompositePrimaryKey

from detection.models.tenants import ProjectKey, TenantForeignKey, TenantOneToOneField


class TenantSchemaEditor(schema.DatabaseSchemaEditor):
    """Django's, except for primary and foreign keys of tenants' rows."""

    def create_model(self, model: Any) -> None:
        """Create the table of a model."""
        super().create_model(model)
        if _is_of_tenant(model) and not isinstance(model._meta.pk, CompositePrimaryKey):
            table, key = self.quote_name(model._meta.db_table), self.quote_name(model._meta.pk.column)
            self.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (project_id, {key})")

    def _iter_column_sql(
        self, column_db_type: Any, params: Any, model: Any, field: Any, *arguments: Any
    ) -> Iterator[str]:
        parts = super()._iter_column_sql(column_db_type, params, model, field, *arguments)  # type: ignore[misc]
        for part in parts:
            if part != "PRIMARY KEY" or not _is_of_tenant(model):
                yield part

    def _create_fk_sql(self, model: Any, field: Any, suffix: str) -> Any:
        statement = super()._create_fk_sql(model, field, suffix)  # type: ignore[misc]
        if isinstance(field, TenantForeignKey | TenantOneToOneField):
            for part, table, column in (
                ("column", model._meta.db_table, field.column),
                ("to_column", field.related_model._meta.db_table, field.target_field.column),
            ):
                statement.parts[part] = Columns(table, ["project_id", str(column)], self.quote_name)
            action = (
                "CASCADE" if field.on_delete is CASCADE else f"SET NULL ({self.quote_name(field.column)})"
            )
            statement.parts["deferrable"] = f" ON DELETE {action}{statement.parts['deferrable']}"
        return statement


def _is_of_tenant(model: Any) -> bool:
    return any(isinstance(field, ProjectKey) for field in model._meta.local_fields)
