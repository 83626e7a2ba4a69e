"""Creates tables whose keys begin with the project, for models with a `ProjectKey`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from django.db.backends.ddl_references import Columns
from django.db.backends.postgresql import schema
from django.db.models import CASCADE, CompositePrimaryKey

from detection.models.tenants import ProjectKey, TenantForeignKey, TenantOneToOneField

ANCHOR: Final = "detection_session"
"""Where tables are distributed over nodes, the rows of a project are where this table has them."""


class TenantSchemaEditor(schema.DatabaseSchemaEditor):
    """Django's, except for primary and foreign keys of tenants' rows."""

    @cached_property
    def is_distributed(self) -> bool:
        """Whether tenants' tables are distributed over the nodes of Citus, so that new ones must be."""
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_extension WHERE extname = 'citus'")
            if cursor.fetchone() is None:
                return False
            cursor.execute("SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass(%s)", [ANCHOR])
            return cursor.fetchone() is not None

    def reference(self, model: Any, field: Any) -> tuple[str, str]:
        """Return the name of the foreign key of a field, and the statement that adds it."""
        statement = self._create_fk_sql(model, field, "_fk_%(to_table)s_%(to_column)s")
        return str(statement.parts["name"]).strip('"'), str(statement)

    def create_model(self, model: Any) -> None:
        """Create the table of a model."""
        super().create_model(model)
        if _is_of_tenant(model) and not isinstance(model._meta.pk, CompositePrimaryKey):
            table, key = self.quote_name(model._meta.db_table), self.quote_name(model._meta.pk.column)
            self.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (project_id, {key})")
            if self.is_distributed:
                # Its references follow in the same transaction, which then must not use several connections to a node.
                self.execute("SET LOCAL citus.multi_shard_modify_mode = sequential")
                name = self.quote_value(model._meta.db_table)
                self.execute(
                    f"SELECT create_distributed_table({name}, 'project_id', colocate_with => '{ANCHOR}')"
                )

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
            action = " ON DELETE CASCADE"
            if field.on_delete is not CASCADE:
                # Citus refuses the action, so the services take the reference away first.
                action = (
                    "" if self.is_distributed else f" ON DELETE SET NULL ({self.quote_name(field.column)})"
                )
            statement.parts["deferrable"] = f"{action}{statement.parts['deferrable']}"
        return statement


def _is_of_tenant(model: Any) -> bool:
    return any(isinstance(field, ProjectKey) for field in model._meta.local_fields)
