"""Addresses of the console."""

from __future__ import annotations

from django.urls import path

from detection.console import (
    alerts,
    approvals,
    audit,
    client_wheel,
    connect,
    connect_guides,
    gateway,
    home,
    incident,
    incidents,
    ingest,
    keys,
    live_page,
    live_rows,
    message_templates,
    policies,
    preferences,
    quarantine,
    session,
    sign_in,
    statistics,
    system,
)

app_name = "console"
_PROJECT = "p/<slug:project>/"

urlpatterns = [
    path("", home.home, name="home"),
    path("favicon.ico", home.icon),
    path("client/<str:name>", client_wheel.download, name="client_wheel"),
    path("sign-in", sign_in.sign_in, name="sign_in"),
    path("sign-out", preferences.sign_out, name="sign_out"),
    path("preferences", preferences.page, name="preferences"),
    path(_PROJECT, home.project, name="project"),
    path(_PROJECT + "live", live_page.page, name="live"),
    path(_PROJECT + "live/rows", live_rows.live_rows, name="live_rows"),
    path(_PROJECT + "live/figures", live_page.figures, name="live_figures"),
    path(_PROJECT + "live/stop", live_page.stop, name="stop_sessions"),
    path(_PROJECT + "live/remove-demo", live_page.remove_demo, name="remove_demo"),
    # The form of an action contains the session's name, because a name may end in anything.
    path(_PROJECT + "session", session.by_name, name="session_by_name"),
    path(_PROJECT + "session/call", session.call, name="session_call"),
    path(_PROJECT + "session/act", session.act, name="session_act"),
    path(_PROJECT + "sessions/<path:name>", session.page, name="session"),
    path(_PROJECT + "incidents", incidents.page, name="incidents"),
    path(_PROJECT + "incidents/act", incidents.act, name="incidents_act"),
    path(_PROJECT + "incidents/<str:public_id>", incident.page, name="incident"),
    path(
        _PROJECT + "incidents/<str:public_id>/exception", incident.create_exception, name="create_exception"
    ),
    path(_PROJECT + "approvals", approvals.page, name="approvals"),
    path(_PROJECT + "message-templates", message_templates.page, name="message_templates"),
    path(_PROJECT + "approvals/decision", approvals.decide, name="decide_approval"),
    path(_PROJECT + "approvals/ruling/label", approvals.label_ruling, name="label_ruling"),
    path(_PROJECT + "approvals/remembered/delete", approvals.delete_remembered, name="delete_remembered"),
    path(_PROJECT + "policies", policies.page, name="policies"),
    path(_PROJECT + "policies/tool-rule", policies.tool_rule, name="tool_rule"),
    path(_PROJECT + "policies/history", policies.history, name="policy_history"),
    path(_PROJECT + "alerts", alerts.page, name="alerts"),
    path(_PROJECT + "alerts/act", alerts.act, name="alerts_act"),
    path(_PROJECT + "alerts/routes/new", alerts.alert_route, name="new_alert_route"),
    path(_PROJECT + "alerts/routes/<str:public_id>", alerts.alert_route, name="alert_route"),
    path(_PROJECT + "alerts/notifications/<str:public_id>", alerts.notification, name="notification"),
    path(_PROJECT + "statistics", statistics.page, name="statistics"),
    path(_PROJECT + "connect", connect.page, name="connect"),
    path(_PROJECT + "connect/attempts", connect.attempts, name="connect_attempts"),
    path(_PROJECT + "connect/guides/<slug:name>", connect_guides.page, name="connect_guide"),
    path(_PROJECT + "connect/sample", connect.send_sample, name="send_sample"),
    path(_PROJECT + "gateway", gateway.page, name="gateway"),
    path(_PROJECT + "gateway/act", gateway.act, name="gateway_act"),
    path(_PROJECT + "keys", keys.page, name="keys"),
    path(_PROJECT + "keys/revoke", keys.revoke, name="revoke_key"),
    path(_PROJECT + "ingest", ingest.page, name="ingest"),
    path(_PROJECT + "system", system.page, name="system"),
    path(_PROJECT + "quarantined-events", quarantine.page, name="quarantine"),
    path(_PROJECT + "audit", audit.page, name="audit"),
    path(_PROJECT + "audit/export", audit.export, name="audit_export"),
]
