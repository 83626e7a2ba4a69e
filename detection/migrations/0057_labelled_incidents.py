"""When an incident was labelled: one that is not a loop ends with its label."""

from django.db import migrations, models

_FILL = """
UPDATE detection_incident SET labelled_at = found.at
FROM (SELECT incident_id, max(at) AS at FROM detection_incidentactivity WHERE action = 'labelled' GROUP BY 1) found
WHERE found.incident_id = detection_incident.id AND detection_incident.label <> ''
"""


class Migration(migrations.Migration):

    dependencies = [
        ('detection', '0056_count_session_tools'),
    ]

    operations = [
        migrations.AddField(
            model_name='incident',
            name='labelled_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.RunSQL(_FILL, migrations.RunSQL.noop),
    ]
