"""Temporary overrides and tool rules: they end by themselves, on every process, and leave a history."""

from datetime import timedelta
from math import inf

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT, Scope
from detection.models import AuditEntry, Override, Project, ToolOverride
from detection.selectors.policies import overrides_of
from detection.selectors.project_cache import ProjectCache
from detection.services.audit import SYSTEM, Actor
from detection.services.errors import Conflict, Invalid
from detection.services.policies import overrides

pytestmark = pytest.mark.django_db
ANA = Actor("ana", user_id=None)
AGENT = Scope.of("triage")


def soon():
    return timezone.now() + timedelta(hours=1)


def expire():
    """Let the time of temporary rows be over, as their hour would have passed."""
    for model in (Override, ToolOverride):
        rows = model.objects.filter(expires_at__isnull=False)
        rows.update(expires_at=timezone.now() - timedelta(seconds=1))


def limit(project, agent="triage", tool="get_state"):
    """The limit as the next call finds it: the row is read with every lock of a session."""
    policy = overrides_of(Project.objects.get(pk=project.pk)).policy_for(agent, "", "", {})
    return policy.for_tool(tool).get("max_repeats")


def test_a_temporary_override_ends_with_what_was_stored_before(project):
    overrides.save_override(project.pk, AGENT, {"max_repeats": 6}, ANA, "as ever")
    overrides.save_override(project.pk, AGENT, {"max_repeats": 9}, ANA, "slow", soon())
    assert limit(project) == 9
    # Replaced by another temporary one, it still ends with the permanent one.
    overrides.save_override(project.pk, AGENT, {"max_repeats": 12}, ANA, "slower", soon())
    overrides.save_override(
        project.pk, Scope("tool", pattern="get_*"), values={"max_repeats": 20}, actor=ANA, expires_at=soon()
    )
    assert (limit(project), limit(project, tool="other")) == (20, 12)
    expire()
    Project.objects.filter(pk=project.pk).update(policy_version=100)  # a process that loads now
    assert limit(project) == 6  # before any sweep
    assert overrides.expire_due() == 2
    assert overrides.expire_due() == 0
    row = Override.objects.get()
    assert (row.values, row.expires_at, row.note) == ({"max_repeats": 6}, None, "as ever")
    assert not ToolOverride.objects.exists()
    entries = AuditEntry.objects.filter(action__startswith="policy.", actor="system")
    assert {(entry.subject, entry.after["note"]) for entry in entries} == {
        ("agent:triage", "expired"),
        ("tool:get_*", "expired"),
    }
    assert (limit(project), Project.objects.get(pk=project.pk).policy_version) == (6, 102)


@pytest.mark.promise("REL-29")
def test_a_process_that_knows_an_override_loads_anew_at_its_time(project):
    row = overrides.save_override(project.pk, PROJECT, {"max_repeats": 9}, SYSTEM, "slow", soon())
    assert overrides_of(Project.objects.get(pk=project.pk)).valid_until == row.expires_at.timestamp()
    times = iter([0.0, inf])  # the first value is outdated at once
    cache = ProjectCache(lambda _: next(times), valid_until=lambda time: time)
    assert [cache.get(project) for _ in range(3)] == [0.0, inf, inf]


def test_saving_anew_makes_it_permanent_and_a_change_whose_past_expired_is_not_restored(project):
    overrides.save_override(project.pk, AGENT, {"max_repeats": 9}, ANA, "slow", soon())
    overrides.save_override(project.pk, AGENT, {"max_repeats": 8}, ANA, "slow")
    assert Override.objects.get().expires_at is None
    entry = AuditEntry.objects.filter(subject="agent:triage").latest("pk")
    overrides.restore(project.pk, entry.pk, ANA)
    row = Override.objects.get()
    assert (row.values, row.expires_at is not None) == ({"max_repeats": 9}, True)
    past = dict(entry.before) | {"expires_at": (timezone.now() - timedelta(days=1)).isoformat()}
    old = AuditEntry.objects.create(
        project=project, actor="ana", action="policy.save", subject="agent:triage", before=past, after={}
    )
    with pytest.raises(Conflict) as error:
        overrides.restore(project.pk, old.pk, ANA)
    assert error.value.code == "expired"


def test_a_restored_temporary_override_ends_with_what_it_ended_with_before(project):
    """Not with the permanent change that is undone."""
    for values, expires_at in (
        ({"max_repeats": 6}, None),
        ({"max_repeats": 9}, soon()),
        ({"max_repeats": 8}, None),
    ):
        overrides.save_override(project.pk, AGENT, values, ANA, "slow", expires_at)
        overrides.save_override(
            project.pk,
            Scope("tool", pattern="get_*"),
            values=values,
            actor=ANA,
            note="slow",
            expires_at=expires_at,
        )
    for subject in ("agent:triage", "tool:get_*"):
        entry = AuditEntry.objects.filter(subject=subject).latest("pk")
        overrides.restore(project.pk, entry.pk, ANA)
    assert (limit(project), limit(project, tool="other")) == (9, 9)
    expire()
    Project.objects.filter(pk=project.pk).update(policy_version=100)  # a process that loads now
    assert (limit(project), limit(project, tool="other")) == (6, 6)


@pytest.mark.parametrize("ahead", [timedelta(seconds=-1), timedelta(days=366)])
def test_a_time_out_of_range_is_rejected(project, ahead):
    with pytest.raises(Invalid) as error:
        overrides.save_override(project.pk, AGENT, {"max_repeats": 9}, ANA, "x", timezone.now() + ahead)
    assert error.value.field == "expires_at"
