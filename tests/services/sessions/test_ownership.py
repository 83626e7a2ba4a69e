"""Who writes sessions: `services.sessions` creates and changes them, `services.retention` deletes them; nobody else."""

import re
from pathlib import Path

import pytest

import detection
from detection.sql.advisory_locks import AdvisoryLock

PRODUCT = Path(detection.__file__).parent
OWNERS = (PRODUCT / "services" / "sessions", PRODUCT / "services" / "retention")
INCIDENTS = (PRODUCT / "services" / "incidents", PRODUCT / "services" / "tracking")
"""Rows of incidents belong to these packages, which act under the session's lock."""
HISTORY = PRODUCT / "migrations"
_VERBS = r"(?:create|bulk_create|update|bulk_update|update_or_create|get_or_create|delete|select_for_update)"
_SESSION_WRITES = (
    rf"\bSession\.objects(?:\s*\.\s*\w+\([^;]*?\))*?\s*\.\s*{_VERBS}\(",
    r"\bsession\.(?:save|delete)\(",
    r"\bSession\([a-z_]+=",
    r"(?:UPDATE|INSERT INTO|DELETE FROM|MERGE INTO)\s+\"?detection_session\b",
    r"(?:UPDATE|INSERT INTO|DELETE FROM|MERGE INTO)\s+\"?detection_trackerstate\b",
    r"\bTrackerState\.objects\b",
    r"services\.sessions(?:\.| import [^\n]*\b)(?:session_rows|tracker_state|event_changes)\b",
)
_INCIDENT_WRITES = (
    rf"\bIncident\.objects(?:\s*\.\s*\w+\([^;]*?\))*?\s*\.\s*{_VERBS}\(",
    r"\bincident\.(?:save|delete)\(",
    r"\bIncident\([a-z_]+=",
    r"(?:UPDATE|INSERT INTO|DELETE FROM|MERGE INTO)\s+\"?detection_incident\b",
)


def modules_outside(*packages):
    for path in sorted(PRODUCT.rglob("*.py")):
        if not any(path.is_relative_to(package) for package in (*packages, HISTORY)):
            yield path, path.read_text(encoding="utf-8")


def writes(patterns, *packages):
    return [
        f"{path.relative_to(PRODUCT)}: {found[0]}"
        for path, text in modules_outside(*packages)
        for pattern in patterns
        for statement in re.split(r"\n\s*\n|\n(?=\s*\w+ = )", text)
        for found in re.finditer(pattern, statement)
    ]


def test_only_the_owners_write_sessions_and_their_state():
    assert writes(_SESSION_WRITES, *OWNERS) == []


def test_incidents_are_written_by_their_packages_and_the_owners_of_their_session():
    assert writes(_INCIDENT_WRITES, *OWNERS, *INCIDENTS) == []


@pytest.mark.parametrize(
    "text",
    [
        "Session.objects.filter(pk=1).update(state='running')",
        "Session.objects.select_for_update().filter(pk=1)",
        "session.save(update_fields=['state'])",
        "cursor.execute('UPDATE detection_session SET state = 1')",
        "Session.objects.create(project=project)",
    ],
)
def test_the_search_recognises_a_write(text):
    assert any(re.search(pattern, text) for pattern in _SESSION_WRITES)


def test_reading_is_not_taken_for_a_write():
    text = "Session.objects.filter(pk=1).first()\nother.update(values)"
    assert not any(re.search(pattern, text) for pattern in _SESSION_WRITES)


def test_every_advisory_lock_has_its_own_number_and_is_taken_in_one_module():
    numbers = [lock.value for lock in AdvisoryLock]
    assert len(numbers) == len(set(numbers)) == len(AdvisoryLock.__members__)
    elsewhere = [
        str(path.relative_to(PRODUCT))
        for path, text in modules_outside(PRODUCT / "sql")
        if re.search(r"advisory_(?:xact_)?(?:un)?lock\b\(|0x4C47", text)
    ]
    assert elsewhere == []
