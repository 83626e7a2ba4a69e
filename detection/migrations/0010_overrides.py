"""Rename stored tiers to overrides and stored tool rules to tool overrides, and add the scope of an agent, keeping all rows."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models.lookups import Exact

_TOOL_CLASSES = ("other", "read", "change", "poll", "wait", "message", "fallible", "exempt")


def _is_json(column, kind):
    kind_of_column = models.Func(models.F(column), function="jsonb_typeof", output_field=models.TextField())
    return Exact(kind_of_column, models.Value(kind))


class Migration(migrations.Migration):
    dependencies = [
        ("detection", "0009_vocabulary"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint("policytier", "one_tier_per_place"),
        migrations.RemoveConstraint("policytier", "tier_place_fits_scope"),
        migrations.RenameModel("PolicyTier", "Override"),
        migrations.RenameModel("ToolRule", "ToolOverride"),
        migrations.AlterModelOptions(
            name="override", options={"ordering": ("project", "agent", "backend", "model")}
        ),
        migrations.AlterModelOptions(
            name="tooloverride", options={"ordering": ("pattern",), "verbose_name": "tool rule"}
        ),
        migrations.RemoveField(model_name="override", name="scope"),
        migrations.AddField(
            model_name="override",
            name="agent",
            field=models.CharField(blank=True, default="", max_length=128),
        ),
        migrations.AlterField(
            model_name="override",
            name="model",
            field=models.CharField(
                blank=True, default="", help_text="Requires a backend.", max_length=200
            ),
        ),
        migrations.AlterField(
            model_name="override",
            name="note",
            field=models.CharField(
                blank=True, default="", help_text="Reason of the last change.", max_length=300
            ),
        ),
        migrations.AlterField(
            model_name="override",
            name="project",
            field=models.ForeignKey(
                blank=True,
                help_text="Empty: every project.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="overrides",
                to="detection.project",
            ),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="ignore_arguments",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text='Argument paths that identity ignores: ["request_id", "meta.nonce"]',
            ),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="note",
            field=models.CharField(
                blank=True, default="", help_text="Reason of the last change.", max_length=300
            ),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="pattern",
            field=models.CharField(
                help_text="Glob on the tool name: search_*, mcp__github__*", max_length=128
            ),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="project",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="tool_overrides",
                to="detection.project",
            ),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="tool_class",
            field=models.CharField(
                blank=True,
                default="",
                help_text="other, read, change, poll, wait, message, fallible, exempt; empty for the built-in class.",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="values",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AlterField(
            model_name="tooloverride",
            name="volatile_result_fields",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text='Result fields that change without meaning: ["timestamp"]',
            ),
        ),
        migrations.AlterField(
            model_name="session",
            name="policy_values",
            field=models.JSONField(default=dict, help_text="The session's own override."),
        ),
        migrations.AddConstraint(
            model_name="override",
            constraint=models.UniqueConstraint(
                fields=("project", "agent", "backend", "model"),
                name="one_override_per_scope",
                nulls_distinct=False,
                violation_error_message="This scope already has an override. Change that one.",
            ),
        ),
        migrations.AddConstraint(
            model_name="override",
            constraint=models.CheckConstraint(
                name="override_names_a_scope",
                violation_error_message=(
                    "An agent or a backend needs a project, a model needs a backend, and an agent has neither."
                ),
                condition=(
                    models.Q(agent="", backend="", model="")
                    | (
                        models.Q(project__isnull=False)
                        & (
                            models.Q(models.Q(backend="", model=""), ~models.Q(agent=""))
                            | models.Q(models.Q(agent=""), ~models.Q(backend=""))
                        )
                    )
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="override",
            constraint=models.CheckConstraint(
                name="override_values_are_an_object", condition=_is_json("values", "object")
            ),
        ),
        migrations.AddConstraint(
            model_name="tooloverride",
            constraint=models.CheckConstraint(
                name="tool_rule_class_known", condition=models.Q(tool_class__in=("", *_TOOL_CLASSES))
            ),
        ),
        migrations.AddConstraint(
            model_name="tooloverride",
            constraint=models.CheckConstraint(
                name="tool_rule_lists_and_values",
                condition=(
                    models.Q(_is_json("values", "object"))
                    & models.Q(_is_json("ignore_arguments", "array"))
                    & models.Q(_is_json("volatile_result_fields", "array"))
                ),
            ),
        ),
    ]
