"""Every function of the services that somebody can call to change something leaves an entry, in the same transaction.

The functions are found by looking: one that takes an actor and is not listed here fails the suite.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from detection import services
from detection.models import AuditEntry, Question, RememberedChoice, Session
from detection.services import (
    audit,
    destinations,
    incidents,
    keys,
    policies,
    questions,
    retention,
    routes,
    sessions,
    texts,
)
from detection.services.audit import Actor
from tests.services.alerting import make_incident, make_route, make_webhook
from tests.services.receiver import receiving

ANA = Actor("ana", address="192.0.2.1", request_id="req-1")
NOT_A_CHANGE_OF_ITS_OWN = {
    "alert_texts.sentence",  # writes a text
    "alerts.note_transition",  # is called by what writes the entry
    "audit.record",  # is the entry
}


def found():
    for module in pkgutil.iter_modules(services.__path__):
        loaded = importlib.import_module(f"detection.services.{module.name}")
        for name, function in inspect.getmembers(loaded, inspect.isfunction):
            inner = inspect.unwrap(function)
            if inner.__module__ != loaded.__name__ or name.startswith("_"):
                continue
            if "actor" in inspect.signature(inner).parameters:
                yield f"{module.name}.{name}"


class World:
    """A project in which everything that can be changed is there."""

    def __init__(self, project, agent, receiver):
        self.project, self.agent, self.receiver = project, agent, receiver
        self.pk = project.pk

    def hook(self):
        return make_webhook(self.project, self.receiver).public_id

    def incident(self, **fields):
        return make_incident(self.project, **fields).public_id

    def session(self):
        self.agent.asks()
        return "s-1"

    def question(self):
        policies.save_tier(self.pk, "project", "", "", {"mode": "ask"}, ANA)
        for _ in range(5):
            self.agent.asks()
        return Question.objects.get(state="open").public_id

    def silence(self):
        ends_at = timezone.now() + timedelta(hours=1)
        return routes.create_silence(self.pk, ANA, reason="x", ends_at=ends_at).public_id

    def done(self, function, *arguments, **more):
        """Do something first and hand back what to undo."""
        public_id = self.incident()
        function(self.pk, public_id, ANA, *arguments, **more)
        return public_id

    def remembered(self):
        questions.answer(self.pk, self.question(), "allow_once", ANA, remember=True)
        return RememberedChoice.objects.get().pk

    def failed(self):
        destinations.send_test(self.pk, self.hook(), ANA)
        return self.project.alert_deliveries.get().public_id

    def two_secrets(self):
        hook = self.hook()
        destinations.add_signing_secret(self.pk, hook, ANA)
        return hook


def _changes(w):
    """What is done for each function: first what it needs, then the change itself."""
    return {
        "commands.run_in_chat": (w.session, lambda s: sessions.run_command(w.pk, s, "!/set(tool-loop-mode=warn)", ANA)),
        "destinations.add_signing_secret": (w.hook, lambda h: destinations.add_signing_secret(w.pk, h, ANA)),
        "destinations.change_destination": (w.hook, lambda h: destinations.change_destination(w.pk, h, ANA, is_enabled=False)),
        "destinations.create_destination": (lambda: None, lambda _: w.hook()),
        "destinations.delete_destination": (w.hook, lambda h: destinations.delete_destination(w.pk, h, ANA)),
        "destinations.resend": (w.failed, lambda m: destinations.resend(w.pk, [m], ANA)),
        "destinations.retire_signing_secrets": (w.two_secrets, lambda h: destinations.retire_signing_secrets(w.pk, h, ANA)),
        "destinations.send_test": (w.hook, lambda h: destinations.send_test(w.pk, h, ANA)),
        "incidents.acknowledge": (w.incident, lambda i: incidents.acknowledge(w.pk, i, ANA)),
        "incidents.bulk": (w.incident, lambda i: incidents.bulk(w.pk, [i], "resolve", ANA)),
        "incidents.comment": (w.incident, lambda i: incidents.comment(w.pk, i, ANA, "hm")),
        "incidents.label": (w.incident, lambda i: incidents.label(w.pk, i, ANA, "true_loop")),
        "incidents.reopen": (lambda: w.done(incidents.resolve), lambda i: incidents.reopen(w.pk, i, ANA)),
        "incidents.resolve": (w.incident, lambda i: incidents.resolve(w.pk, i, ANA)),
        "incidents.snooze": (w.incident, lambda i: incidents.snooze(w.pk, i, ANA, until_worse=True)),
        "incidents.undo": (lambda: w.done(incidents.acknowledge), lambda i: incidents.undo(w.pk, i, ANA)),
        "keys.create_key": (lambda: None, lambda _: keys.create_key(w.project, "k", ANA)),
        "keys.revoke_key": (lambda: keys.create_key(w.project, "k", ANA)[0], lambda k: keys.revoke_key(w.project, k.public_id, ANA)),
        "policies.save_tier": (lambda: None, lambda _: policies.save_tier(w.pk, "backend", "x", "", {"max_repeats": 9}, ANA)),
        "policies.delete_tier": (
            lambda: policies.save_tier(w.pk, "backend", "x", "", {"max_repeats": 9}, ANA),
            lambda _: policies.delete_tier(w.pk, "backend", "x", "", ANA),
        ),
        "policies.save_tool_rule": (lambda: None, lambda _: policies.save_tool_rule(w.pk, "a_*", actor=ANA, exempt=True)),
        "policies.delete_tool_rule": (
            lambda: policies.save_tool_rule(w.pk, "a_*", actor=ANA, exempt=True),
            lambda _: policies.delete_tool_rule(w.pk, "a_*", ANA),
        ),
        "policies.restore": (
            lambda: policies.save_tool_rule(w.pk, "a_*", actor=ANA, exempt=True),
            lambda _: policies.restore(w.pk, AuditEntry.objects.get(action="policy.tool_rule").pk, ANA),
        ),
        "questions.answer": (w.question, lambda q: questions.answer(w.pk, q, "allow_once", ANA)),
        "questions.forget": (w.remembered, lambda r: questions.forget(w.pk, r, ANA)),
        "routes.create_silence": (lambda: None, lambda _: w.silence()),
        "routes.end_silence": (w.silence, lambda s: routes.end_silence(w.pk, s, ANA)),
        "routes.save_route": (lambda: None, lambda _: make_route(w.project)),
        "routes.delete_route": (lambda: make_route(w.project), lambda r: routes.delete_route(w.pk, r.public_id, ANA)),
        "sessions.stop": (w.session, lambda s: sessions.stop(w.pk, s, ANA)),
        "sessions.stop_many": (w.session, lambda s: sessions.stop_many(w.pk, [s], ANA)),
        "sessions.resume": (lambda: sessions.stop(w.pk, w.session(), ANA), lambda s: sessions.resume(w.pk, s.external_id, ANA)),
        "sessions.set_policy": (w.session, lambda s: sessions.set_policy(w.pk, s, {"max_repeats": 9}, ANA)),
        "sessions.run_command": (w.session, lambda s: sessions.run_command(w.pk, s, "!/set(tool-loop-max-repeats=9)", ANA)),
        "sessions.delete_demo": (lambda: None, lambda _: sessions.delete_demo(w.pk, ANA)),
        "texts.save_text": (lambda: None, lambda _: texts.save_text(w.pk, "warn", "", "Careful with $tool.", ANA)),
    }  # fmt: skip


@pytest.fixture
def world(project, agent, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as receiver:
        yield World(project, agent, receiver)


def test_every_function_that_takes_an_actor_is_tried_here(world):
    assert set(found()) - NOT_A_CHANGE_OF_ITS_OWN == set(_changes(world))


@pytest.mark.parametrize("name", sorted(set(found()) - NOT_A_CHANGE_OF_ITS_OWN))
def test_a_change_leaves_an_entry_in_its_own_transaction(world, name):
    prepare, change = _changes(world)[name]
    needed = prepare()
    before = AuditEntry.objects.count()
    point = transaction.savepoint()
    change(needed)
    assert AuditEntry.objects.count() > before
    newest = AuditEntry.objects.order_by("-pk").first()
    assert newest.actor == "ana"
    assert newest.project_id == world.pk
    transaction.savepoint_rollback(point)
    assert AuditEntry.objects.count() == before


def test_what_housekeeping_removes_is_entered_as_the_systems_doing(world):
    world.session()
    Session.objects.update(last_event_at=timezone.now() - timedelta(days=400))
    retention.purge(world.project)
    assert AuditEntry.objects.get(action="retention.purge").actor == "system"


@pytest.mark.parametrize(
    "statement", ["UPDATE detection_auditentry SET actor = 'eve'", "DELETE FROM detection_auditentry"]
)
def test_the_database_refuses_to_change_or_remove_an_entry(world, statement):
    audit.record(ANA, "test.entry", "x", project_id=world.pk)
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
