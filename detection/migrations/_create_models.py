"""The operation of the squashed migration."""

from collections.abc import Sequence
from typing import Any

from django.db.migrations.operations import CreateModel
from django.db.migrations.operations.base import Operation


class CreateModels(Operation):
    """Create the tables of several models.

    Django's operations build all related classes again for each of them, which takes most of the time of a first start;
    this one builds the classes of all models once.

    Parameters
    ----------
    operations : sequence of CreateModel
        They may refer to one another in any order.
    """

    def __init__(self, operations: Sequence[CreateModel]) -> None:
        self.operations = operations

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Describe the models, and forget the classes built so far."""
        state.__dict__.pop("apps", None)  # a cached property
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Create the tables."""
        for operation in self.operations:
            operation.database_forwards(app_label, schema_editor, from_state, to_state)
