"""Every function of the services that somebody can call to change something leaves an entry, in the same transaction.

The functions are found by looking: one that takes an actor and is not listed here fails the suite.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.utils import timezone
from django_otp.oath import totp

from detection import services
from detection.admin.records import AREAS
from detection.engine.scopes import PROJECT, Scope
from detection.integrations.labels import NO_LABELS
from detection.models import (
    Approval,
    AuditEntry,
    Loop,
    Project,
    RememberedDecision,
    Session,
    SignIn,
)
from detection.selectors import held_groups
from detection.services import agent_messages, audit, install_codes, keys, saved_views, tags
from detection.services.accounts import passwords, second_factor, sign_ins
from detection.services.alerting import alert_routes, destinations, notifications, silences
from detection.services.approvals import decisions, group_decisions, judge_consultation
from detection.services.audit import Actor
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from detection.services.exceptions import exceptions, fine
from detection.services.gateway import backends, prices
from detection.services.incidents import bulk_actions, loop_triage
from detection.services.ingestion import import_files, run_import, transcript_imports
from detection.services.ingestion.transcript_imports import Arrived
from detection.services.learning import decisions as learning
from detection.services.learning.suggestions import learn
from detection.services.policies import message_templates, overrides, transfer
from detection.services.projects import invitations, members, projects, reports
from detection.services.retention import erasure, removal, retention
from detection.services.search import records
from detection.services.sessions import actions, quarantine
from detection.services.what_if import changes, what_ifs
from tests.support.alerts import make_incident, make_route, make_webhook
from tests.support.http_receiver import receiving
from tests.support.projects import make_member, make_project

ANA = Actor("ana", address="192.0.2.1", request_id="req-1")
NOT_A_CHANGE_OF_ITS_OWN = {
    "jobs.cancel",
    "alerting.rendering.sentence",  # writes a text
    "alerting.outbox.record_containment",
    "alerting.outbox.record_verb",  # is called by what writes the entry
    "audit.record",  # is the entry
    "loop_activity.record",  # is the entry
    "alerting.postponing.postpone",  # parts of `loop_triage`
    "alerting.postponing.bring_back",
    "incidents.loop_triage.start_fine",
    "alerting.silences.extend_again",
    "approvals.decisions.close_locked",  # parts of a decision, which writes the entry
    "approvals.decisions.locked_for_decision",
    "approvals.decisions.remember_decision",
    "sessions.actions.stop_locked",  # part of `stop` and of a decision
}


def found():
    for module in pkgutil.walk_packages(services.__path__, "detection.services."):
        loaded = importlib.import_module(module.name)
        for name, function in inspect.getmembers(loaded, inspect.isfunction):
            inner = inspect.unwrap(function)
            if inner.__module__ != loaded.__name__ or name.startswith("_"):
                continue
            if "actor" in inspect.signature(inner).parameters:
                yield f"{module.name.removeprefix('detection.services.')}.{name}"


class World:
    """A project in which everything that can be changed is there."""

    def __init__(self, project, agent, receiver):
        self.project, self.agent, self.receiver = project, agent, receiver
        self.pk = project.pk

    def target(self):
        return make_webhook(self.project, self.receiver)

    def hook(self):
        return self.target().public_id

    def incident(self, **fields):
        return make_incident(self.project, **fields).public_id

    def loop(self):
        self.incident(status="open", ended_at=None)
        return Loop.objects.get().public_id

    def all_done(self, public_id):
        keys = [Loop.objects.get(public_id=public_id).pk]
        return bulk_actions.start(self.pk, keys, "done", ANA, verbs=fine.ACTIONS, seconds=1)

    def left(self):
        person = make_member(self.project)
        loop_triage.assign(self.pk, self.loop(), ANA, person.username)
        person.memberships.all().delete()

    def session(self):
        self.agent.asks()
        return "s-1"

    def approval(self):
        overrides.save_override(self.pk, PROJECT, {"mode": "ask"}, ANA)
        for _ in range(5):
            self.agent.asks()
        return Approval.objects.get(state="open").public_id

    def held_group(self):
        self.approval()
        return held_groups.list_groups(self.pk).items[0].group

    def group_answer(self):
        return group_decisions.decide(self.pk, self.held_group(), "skip", ANA).id

    def view(self):
        return saved_views.save_view(self.pk, "incidents", "Mine", "q=is%3Aopen", ANA)

    def contained(self):
        return containments.contain(self.pk, Wanted("tool", "deploy", "block"), ANA)

    def silence(self):
        ends_at = timezone.now() + timedelta(hours=1)
        return silences.create_silence(self.pk, ANA, reason="x", ends_at=ends_at).public_id

    def done(self, function, *arguments, **more):
        """Do something first and hand back what to undo."""
        public_id = self.loop() if function.__module__ == loop_triage.__name__ else self.incident()
        function(self.pk, public_id, ANA, *arguments, **more)
        return public_id

    def backend(self):
        address = {"kind": "openai", "base_url": self.receiver.url}
        return backends.create_backend(self.pk, ANA, name="local", **address).public_id

    def token(self):
        backend = self.backend()
        return backend, backends.create_token(self.pk, backend, ANA, name="ci")[0].public_id

    def price(self):
        return prices.save_price(self.pk, ANA, model="gpt-*", input_usd=1, output_usd=2).public_id

    def person(self):
        return make_member(make_project())

    def signed_in(self):
        client = Client()
        client.force_login(self.person())
        client.get("/account")
        return SignIn.objects.get()

    def enrolling(self):
        return second_factor.begin(self.person())

    def enrolled(self):
        device = self.enrolling()
        second_factor.confirm(device.user, _code(device), ANA)
        return device.user

    def invitation(self):
        return invitations.create_invitation(self.pk, ANA, role="viewer", days=1)

    def new_project(self, actor):
        project = make_project()
        self.pk = project.pk
        members.add_creator(project, actor)

    def created_project(self):
        self.pk = projects.create_project(ANA, name="New").pk

    def remembered(self):
        decisions.decide(self.pk, self.approval(), "allow_once", ANA, remember=True)
        return RememberedDecision.objects.get().pk

    def exemption(self):
        decisions.decide(self.pk, self.approval(), "exempt", ANA)

    def ruling(self):
        approval = Approval.objects.get(public_id=self.approval())
        approval.judge_calls.create(
            project=self.project,
            session_id=approval.session_id,
            calls_digest=approval.calls_digest,
            outcome="denied",
        )
        return approval.public_id

    def quarantined(self):
        session = Session.objects.get(external_id=self.session())
        session.quarantined_events.create(project=self.project, seq=session.last_seq, type="call", error="x")
        return "s-1"

    def failed(self):
        notifications.send_test(self.pk, self.hook(), ANA)
        return self.project.notifications.get().public_id

    def excepted(self):
        incident = self.incident()
        exceptions.create_exception(self.pk, incident, ANA, "tool:poll")
        return incident

    def what_if(self):
        return what_ifs.create_what_if(self.pk, changes.check(self.pk, "project", {}), ANA).public_id

    def suggestion(self):
        for _ in range(3):
            make_incident(self.project, tool="poller", label="false_alarm", label_reason="poll")
        return learn(self.project).suggestions[0].id

    def accepted_suggestion(self):
        return learning.accept(self.pk, self.suggestion(), ANA).public_id

    def imported(self):
        path = import_files.new_file()
        path.write_text("{}")
        files = [Arrived("run.jsonl", path)]
        return transcript_imports.create_import(self.pk, ANA, kind="trace", files=files).public_id

    def noted_import(self):
        summary = run_import.summarise(Project.objects.get(pk=self.pk), [])
        facts: dict[str, Any] = {
            "kind": "trace",
            "path": "runs",
            "size": 2,
            "prices": None,
            "labels": NO_LABELS,
            "events": 0,
            "skipped": [],
        }
        return transcript_imports.note_import(self.pk, ANA, summary=summary, **facts)

    def two_secrets(self):
        hook = self.hook()
        destinations.add_signing_secret(self.pk, hook, ANA)
        return hook


def _code(device):
    return f"{totp(device.bin_key):06}"


def _changes(w):
    """What is done for each function: first what it needs, then the change itself."""
    return {
        "accounts.passwords.set_password": (w.person, lambda p: passwords.set_password(p, "another long one", ANA)),
        "accounts.passwords.set_email": (w.person, lambda p: passwords.set_email(p, "ana@example.org", ANA)),
        "accounts.passwords.create_reset_link": (w.person, lambda p: passwords.create_reset_link(p, ANA)),
        "accounts.sign_ins.end_sign_in": (w.signed_in, lambda s: sign_ins.end_sign_in(s.user_id, s.public_id, ANA)),
        "accounts.sign_ins.end_sign_ins": (w.signed_in, lambda s: sign_ins.end_sign_ins(s.user_id, ANA)),
        "accounts.second_factor.confirm": (w.enrolling, lambda d: second_factor.confirm(d.user, _code(d), ANA)),
        "accounts.second_factor.create_recovery_codes": (w.enrolled, lambda p: second_factor.create_recovery_codes(p, ANA)),
        "accounts.second_factor.disable": (w.enrolled, lambda p: second_factor.disable(p, ANA)),
        "sessions.chat_commands.run_in_chat": (w.session, lambda s: actions.run_command(w.pk, s, "!/set(tool-loop-mode=warn)", ANA)),
        "alerting.destinations.add_signing_secret": (w.hook, lambda h: destinations.add_signing_secret(w.pk, h, ANA)),
        "alerting.destinations.update_destination": (w.hook, lambda h: destinations.update_destination(w.pk, h, ANA, is_enabled=False)),
        "alerting.destinations.create_destination": (lambda: None, lambda _: w.hook()),
        "alerting.destinations.delete_destination": (w.hook, lambda h: destinations.delete_destination(w.pk, h, ANA)),
        "alerting.notifications.resend": (w.failed, lambda m: notifications.resend(w.pk, [m], ANA)),
        "alerting.destinations.remove_old_secrets": (w.two_secrets, lambda h: destinations.remove_old_secrets(w.pk, h, ANA)),
        "alerting.notifications.send_test": (w.hook, lambda h: notifications.send_test(w.pk, h, ANA)),
        "gateway.backends.create_backend": (lambda: None, lambda _: w.backend()),
        "gateway.backends.update_backend": (w.backend, lambda b: backends.update_backend(w.pk, b, ANA, is_enabled=False)),
        "gateway.backends.delete_backend": (w.backend, lambda b: backends.delete_backend(w.pk, b, ANA)),
        "gateway.backends.test_backend": (w.backend, lambda b: backends.test_backend(w.pk, b, ANA)),
        "gateway.backends.create_token": (w.backend, lambda b: backends.create_token(w.pk, b, ANA, name="ci")),
        "gateway.prices.save_price": (lambda: None, lambda _: w.price()),
        "gateway.prices.delete_price": (w.price, lambda p: prices.delete_price(w.pk, p, ANA)),
        "gateway.backends.revoke_token": (w.token, lambda t: backends.revoke_token(w.pk, t[0], t[1], ANA)),
        "ingestion.transcript_imports.create_import": (lambda: None, lambda _: w.imported()),
        "ingestion.transcript_imports.note_import": (lambda: None, lambda _: w.noted_import()),
        "ingestion.transcript_imports.cancel_import": (w.imported, lambda i: transcript_imports.cancel_import(w.pk, i, ANA)),
        "what_if.what_ifs.create_what_if": (lambda: None, lambda _: w.what_if()),
        "what_if.what_ifs.cancel_what_if": (w.what_if, lambda i: what_ifs.cancel_what_if(w.pk, i, ANA)),
        "what_if.what_ifs.save_change": (lambda: None, lambda _: what_ifs.save_change(w.pk, changes.check(w.pk, "project", {"max_repeats": 3}), ANA, "x")),
        "learning.decisions.accept": (w.suggestion, lambda s: learning.accept(w.pk, s, ANA)),
        "learning.decisions.reject": (w.suggestion, lambda s: learning.reject(w.pk, s, ANA)),
        "learning.decisions.undo": (w.accepted_suggestion, lambda s: learning.undo(w.pk, s, ANA)),
        "learning.decisions.try_on_history": (w.suggestion, lambda s: learning.try_on_history(w.pk, s, ANA)),
        "exceptions.exceptions.create_exception": (w.incident, lambda i: exceptions.create_exception(w.pk, i, ANA, "tool:poll")),
        "exceptions.exceptions.undo_exception": (w.excepted, lambda i: exceptions.undo_exception(w.pk, i, ANA)),
        "incidents.bulk_actions.start": (w.loop, lambda i: w.all_done(i)),
        "incidents.bulk_actions.undo": (
            lambda: w.all_done(w.loop()), lambda b: bulk_actions.undo(w.pk, b.public_id, ANA, verbs=fine.ACTIONS, seconds=1)
        ),
        "incidents.loop_triage.assign": (w.loop, lambda p: loop_triage.assign(w.pk, p, ANA, make_member(w.project).username)),
        "incidents.loop_triage.comment": (w.loop, lambda p: loop_triage.comment(w.pk, p, ANA, "x")),
        "incidents.loop_triage.later": (w.loop, lambda p: loop_triage.later(w.pk, p, ANA, until_worse=True)),
        "incidents.loop_triage.reopen": (
            lambda: w.done(loop_triage.later, until_worse=True), lambda p: loop_triage.reopen(w.pk, p, ANA)
        ),
        "incidents.loop_triage.done": (w.loop, lambda p: loop_triage.done(w.pk, p, ANA)),
        "incidents.loop_triage.fine": (w.loop, lambda p: loop_triage.fine(w.pk, p, ANA)),
        "incidents.loop_triage.confirm": (w.loop, lambda p: loop_triage.confirm(w.pk, p, ANA)),
        "incidents.loop_triage.undo": (
            lambda: w.done(loop_triage.done), lambda p: loop_triage.undo(w.pk, p, ANA)
        ),
        "exceptions.fine.fine": (w.loop, lambda p: fine.fine(w.pk, p, ANA, where="agent")),
        "exceptions.fine.undo": (lambda: w.done(loop_triage.done), lambda p: fine.undo(w.pk, p, ANA)),
        "exceptions.fine.bulk": (w.loop, lambda p: fine.bulk(w.pk, [p], "fine", ANA)),
        "incidents.loop_triage.unassign_former_members": (
            w.left, lambda _: loop_triage.unassign_former_members(w.pk, ANA)
        ),
        "incidents.loop_triage.bulk": (w.loop, lambda p: loop_triage.bulk(w.pk, [p], "done", ANA)),
        "install_codes.create_code": (w.person, lambda p: install_codes.create_code(
            w.project, replace(ANA, user_id=p.pk), integration="codex", title="Codex", scope="guard"
        )),
        "keys.create_key": (lambda: None, lambda _: keys.create_key(w.project, "k", ANA)),
        "keys.revoke_key": (lambda: keys.create_key(w.project, "k", ANA)[0], lambda k: keys.revoke_key(w.project, k.public_id, ANA)),
        "policies.overrides.save_override": (lambda: None, lambda _: overrides.save_override(w.pk, Scope("backend", backend="x"), {"max_repeats": 9}, ANA)),
        "policies.transfer.import_policies": (lambda: None, lambda _: transfer.import_policies(w.pk, {"format": transfer.FORMAT, "scopes": [{"scope": "backend:x", "values": {"max_repeats": 9}}]}, ANA)),
        "policies.overrides.set_value": (lambda: None, lambda _: overrides.set_value(w.pk, Scope("backend", backend="x"), "max_repeats", 9, ANA)),
        "policies.overrides.delete_override": (
            lambda: overrides.save_override(w.pk, Scope("backend", backend="x"), {"max_repeats": 9}, ANA),
            lambda _: overrides.delete_override(w.pk, Scope("backend", backend="x"), ANA),
        ),
        "policies.overrides.restore": (
            lambda: overrides.save_override(w.pk, Scope("tool", pattern="a_*"), {}, actor=ANA, exempt=True),
            lambda _: overrides.restore(w.pk, AuditEntry.objects.get(action="policy.tool_rule").pk, ANA),
        ),
        "policies.overrides.undo": (
            lambda: overrides.save_override(w.pk, Scope("tool", pattern="a_*"), {}, actor=ANA, exempt=True),
            lambda _: overrides.undo(w.pk, AuditEntry.objects.get(action="policy.tool_rule").pk, ANA),
        ),
        "approvals.decisions.decide": (w.approval, lambda q: decisions.decide(w.pk, q, "allow_once", ANA)),
        "approvals.group_decisions.decide": (w.held_group, lambda g: group_decisions.decide(w.pk, g, "skip", ANA)),
        "approvals.group_decisions.undo": (w.group_answer, lambda a: group_decisions.undo(w.pk, a, ANA)),
        "approvals.decisions.delete_remembered": (w.remembered, lambda r: decisions.delete_remembered(w.pk, r, ANA)),
        "approvals.judge_consultation.label_ruling": (w.ruling, lambda q: judge_consultation.label_ruling(w.pk, q, "wrong", ANA)),
        "alerting.silences.create_silence": (lambda: None, lambda _: w.silence()),
        "alerting.silences.end_silence": (w.silence, lambda s: silences.end_silence(w.pk, s, ANA)),
        "alerting.alert_routes.save_route": (w.target, lambda t: make_route(w.project, t)),
        "alerting.alert_routes.delete_route": (lambda: make_route(w.project, w.target()), lambda r: alert_routes.delete_route(w.pk, r.public_id, ANA)),
        "projects.projects.create_project": (lambda: None, lambda _: w.created_project()),
        "projects.projects.update_project": (lambda: None, lambda _: projects.update_project(w.pk, ANA, retention_days=90)),
        "projects.projects.archive_project": (lambda: None, lambda _: projects.archive_project(w.pk, ANA)),
        "projects.members.add_creator": (w.person, lambda p: w.new_project(Actor("ana", p.pk))),
        "projects.members.change_role": (lambda: make_member(w.project, "viewer"), lambda p: members.change_role(w.pk, p.pk, "admin", ANA)),
        "projects.members.remove_member": (lambda: make_member(w.project, "viewer"), lambda p: members.remove_member(w.pk, p.pk, ANA)),
        "projects.invitations.create_invitation": (lambda: None, lambda _: w.invitation()),
        "projects.invitations.revoke_invitation": (w.invitation, lambda i: invitations.revoke_invitation(w.pk, i[0].public_id, ANA)),
        "projects.reports.create_report": (lambda: None, lambda _: reports.create_report(w.pk, ANA)),
        "projects.reports.revoke_report": (lambda: reports.create_report(w.pk, ANA)[0], lambda r: reports.revoke_report(w.pk, r.public_id, ANA)),
        "projects.invitations.accept_invitation": (
            lambda: (w.invitation()[1], w.person()),
            lambda i: invitations.accept_invitation(i[0], Actor("ana", i[1].pk)),
        ),
        "sessions.actions.stop": (w.session, lambda s: actions.stop(w.pk, s, ANA)),
        "sessions.actions.stop_many": (w.session, lambda s: actions.stop_many(w.pk, [s], ANA)),
        "sessions.actions.resume": (lambda: actions.stop(w.pk, w.session(), ANA), lambda s: actions.resume(w.pk, s.external_id, ANA)),
        "sessions.actions.revoke_exemption": (w.exemption, lambda _: actions.revoke_exemption(w.pk, "s-1", "search_web", ANA)),
        "sessions.actions.set_policy": (w.session, lambda s: actions.set_policy(w.pk, s, {"max_repeats": 9}, ANA)),
        "sessions.actions.run_command": (w.session, lambda s: actions.run_command(w.pk, s, "!/set(tool-loop-max-repeats=9)", ANA)),
        "sessions.quarantine.retry": (w.quarantined, lambda s: quarantine.retry(w.pk, s, ANA)),
        "sessions.quarantine.retry_all": (w.quarantined, lambda _: quarantine.retry_all(w.pk, ANA)),
        "retention.erasure.request_erasure": (w.session, lambda s: erasure.request_erasure(w.pk, "session", s, ANA)),
        "retention.erasure.request_erasures": (w.session, lambda s: erasure.request_erasures(w.pk, [s], ANA)),
        "containments.containments.contain": (lambda: None, lambda _: w.contained()),
        "containments.containments.lift": (w.contained, lambda one: containments.lift(w.pk, one.public_id, ANA)),
        "agent_messages.leave": (w.session, lambda s: agent_messages.leave(w.pk, "Stay away.", ANA, session=s)),
        "agent_messages.withdraw": (
            lambda: agent_messages.leave(w.pk, "Stay away.", ANA, session=w.session()),
            lambda one: agent_messages.withdraw(w.pk, one.public_id, ANA),
        ),
        "tags.set_agent_tags": (lambda: None, lambda _: tags.set_agent_tags(w.pk, "triage", ["beta"], ANA)),
        "tags.set_key_tags": (
            lambda: keys.create_key(w.project, "k", ANA)[0],
            lambda k: tags.set_key_tags(w.pk, k.public_id, ["beta"], ANA),
        ),
        "search.records.record_search": (lambda: None, lambda _: records.record_search(w.pk, ANA, 3)),
        "retention.removal.remove_demo": (lambda: None, lambda _: removal.remove_demo(w.pk, ANA)),
        "saved_views.save_view": (lambda: None, lambda _: saved_views.save_view(w.pk, "incidents", "Costly", "sort=-cost", ANA)),
        "saved_views.rename_view": (w.view, lambda one: saved_views.rename_view(w.pk, one.public_id, "Other", ANA)),
        "saved_views.delete_view": (w.view, lambda one: saved_views.delete_view(w.pk, one.public_id, ANA)),
        "policies.message_templates.save_template": (lambda: None, lambda _: message_templates.save_template(w.pk, "warn", "", "Careful with $tool.", ANA)),
    }  # fmt: skip


@pytest.fixture
def world(project, agent, settings):
    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as receiver:
        settings.GATEWAY_UPSTREAMS = (receiver.url,)
        yield World(project, agent, receiver)


@pytest.mark.promise("SEC-25")
def test_every_function_that_takes_an_actor_is_tried_here(world):
    assert set(found()) - NOT_A_CHANGE_OF_ITS_OWN == set(_changes(world))


@pytest.mark.promise("SEC-24")
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
    assert newest.project_id == (None if name.startswith("accounts.") else world.pk)
    assert newest.action.partition(".")[0] in AREAS, "the administration filters by area"
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
@pytest.mark.servers
def test_the_database_refuses_to_change_or_remove_an_entry(world, statement):
    audit.record(ANA, "test.entry", "x", project_id=world.pk)
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
