"""A project with one of every record that the administration shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.test import override_settings

from detection.engine.scopes import Scope
from detection.models import (
    AlertDestination,
    AlertRoute,
    Approval,
    AuditEntry,
    GatewayBackend,
    Incident,
    JudgeCall,
    ModelPrice,
    Notification,
    Session,
)
from detection.services.alerting import delivery, notifications
from detection.services.audit import SYSTEM
from detection.services.gateway import backends, prices
from detection.services.policies import overrides
from tests.console.scenes import World, ask, make_world
from tests.support.alerts import make_route, make_webhook
from tests.support.http_receiver import Receiver, receiving
from tests.support.shared_rows import shared_rows

LOCAL_NETWORK = ("127.0.0.0/8",)


@contextlib.contextmanager
def shared_records(django_db_blocker: Any) -> Iterator[tuple[World, dict[str, Any]]]:
    """Make the world of a superuser and its rows for the tests of a module, each of which takes a copy of the world."""
    with (
        override_settings(ALERT_ALLOWED_NETWORKS=LOCAL_NETWORK),
        receiving() as receiver,
        shared_rows(django_db_blocker),
    ):
        world, rows = make_records(receiver)
        world.user.is_staff = world.user.is_superuser = True
        world.user.save()
        yield world, rows


def make_records(receiver: Receiver, **text: str) -> tuple[World, dict[str, Any]]:
    """Make the world and return its rows by the name of their model; `text` replaces names that clients choose."""
    world = make_world(**text)
    hook = make_webhook(world.project, receiver)
    make_route(world.project, hook)
    notifications.send_test(world.project.pk, hook.public_id, SYSTEM)
    delivery.run(budget_seconds=5)
    overrides.save_override(
        world.project.pk, Scope("backend", backend="asking"), {"mode": "ask", "max_repeats": 2}, SYSTEM
    )
    tool = text.get("tool", "send_mail")
    for number in range(3):
        ask(world.project, text.get("session", "asking"), 10 + number, tool=tool, backend="asking", model="m")
    approval = Approval.objects.get(project=world.project)
    JudgeCall.objects.create(
        project=world.project, approval=approval, incident=approval.incident, calls_digest=approval.calls_digest,
        session_id=approval.session_id, outcome="denied", response=text.get("tool", "no"), model="judge-1",
    )  # fmt: skip
    upstream = settings.GATEWAY_UPSTREAMS[0]
    backends.create_backend(world.project.pk, SYSTEM, name="main", kind="openai", base_url=upstream)
    prices.save_price(world.project.pk, SYSTEM, model="gpt-5", input_usd="1", output_usd="2")
    models = (
        AlertDestination, AlertRoute, Notification, Approval, JudgeCall, AuditEntry, Incident, Session, GatewayBackend,
        ModelPrice,
    )  # fmt: skip
    rows = {model._meta.model_name: model.objects.filter(project=world.project).first() for model in models}
    return world, rows
