"""Addresses of the console."""

from __future__ import annotations

from django.urls import path

from detection.console import filter_values, home, list_export, saved_views, search
from detection.console.accounts import (
    account,
    invitations,
    password_reset,
    preferences,
    second_factor,
    sign_in,
)
from detection.console.alerting import alert_pages, alert_routes
from detection.console.approvals import decisions, held_groups, held_page
from detection.console.gateway import backends, prices, traffic
from detection.console.integrations import (
    base_urls,
    client_wheel,
    connect,
    imports,
    ingest,
    quarantine,
)
from detection.console.loops import incident, incidents, loop_list, loop_page
from detection.console.now import attention, containments, now_page
from detection.console.policies import (
    change_here,
    exceptions,
    message_templates,
    policy_pages,
    suggestions,
    what_if,
)
from detection.console.projects import (
    agents,
    audit,
    erasures,
    keys,
    members,
    project_pages,
    settings_hub,
    system,
)
from detection.console.sessions import live_rows, session_list, session_page
from detection.console.statistics import statistics_page

app_name = "console"
_PROJECT = "p/<slug:project>/"

urlpatterns = [
    path("", home.home, name="home"),
    path("favicon.ico", home.icon),
    path("client/<str:name>", client_wheel.download, name="client_wheel"),
    path("sign-in", sign_in.sign_in, name="sign_in"),
    path("sign-in/code", sign_in.code, name="sign_in_code"),
    path("forgotten-password", password_reset.forgotten, name="forgotten_password"),
    path("reset-password/<str:uidb64>/<str:token>", password_reset.reset, name="reset_password"),
    path("account", account.page, name="account"),
    path("account/second-factor", second_factor.page, name="second_factor"),
    path("sign-out", preferences.sign_out, name="sign_out"),
    path("preferences", preferences.page, name="preferences"),
    path("projects", project_pages.list_page, name="projects"),
    path("invitations/<str:token>", invitations.page, name="invitation"),
    path(_PROJECT, home.project, name="project"),
    path(_PROJECT + "attention", attention.attention, name="attention"),
    path(_PROJECT + "search", search.page, name="search"),
    path(_PROJECT + "palette", search.palette, name="palette"),
    path(_PROJECT + "now", now_page.page, name="now"),
    path(_PROJECT + "live", session_list.earlier_address, name="live"),
    path(_PROJECT + "sessions", session_list.page, name="sessions"),
    # Beside the list, because a session may have any name below it.
    path(_PROJECT + "session/rows", live_rows.live_rows, name="live_rows"),
    path(_PROJECT + "session/tabs", session_list.tabs, name="session_tabs"),
    path(_PROJECT + "session/change", session_list.change, name="change_sessions"),
    path(_PROJECT + "session/remove-demo", session_list.remove_demo, name="remove_demo"),
    # The form of an action contains the session's name, because a name may end in anything.
    path(_PROJECT + "session", session_page.by_name, name="session_by_name"),
    path(_PROJECT + "session/call", session_page.call, name="session_call"),
    path(_PROJECT + "session/act", session_page.act, name="session_act"),
    path(_PROJECT + "sessions/<path:name>", session_page.page, name="session"),
    path(_PROJECT + "loops", loop_list.page, name="loops"),
    path(_PROJECT + "loops/act", loop_list.act, name="loops_act"),
    path(_PROJECT + "loops/read", loop_list.mark_as_read, name="loops_read"),
    path(_PROJECT + "loops/<str:public_id>", loop_page.page, name="loop"),
    path(_PROJECT + "patterns", loop_list.earlier_address, name="patterns"),
    path(_PROJECT + "patterns/<str:public_id>", loop_list.earlier_address, name="pattern"),
    path(_PROJECT + "incidents", incidents.page, name="incidents"),
    path(_PROJECT + "incidents/act", incidents.act, name="incidents_act"),
    path(_PROJECT + "incidents/<str:public_id>", incident.page, name="incident"),
    path(
        _PROJECT + "incidents/<str:public_id>/exception",
        exceptions.create_exception,
        name="create_exception",
    ),
    path(_PROJECT + "export/statistics", statistics_page.export),
    path(_PROJECT + "export/<slug:name>", list_export.export, name="export_list"),
    path(_PROJECT + "views/act", saved_views.act, name="act_on_view"),
    path(_PROJECT + "filter-values/<slug:name>", filter_values.filter_values, name="filter_values"),
    path(
        _PROJECT + "incidents/<str:public_id>/exception/undo",
        exceptions.undo_exception,
        name="undo_exception",
    ),
    path(_PROJECT + "held", held_page.page, name="held"),
    path(_PROJECT + "approvals", held_page.earlier_address, name="approvals"),
    path(_PROJECT + "message-templates", message_templates.page, name="message_templates"),
    path(_PROJECT + "approvals/decision", decisions.decide, name="decide_approval"),
    path(_PROJECT + "approvals/group/decision", held_groups.decide, name="decide_group"),
    path(_PROJECT + "approvals/answer/undo", held_groups.undo, name="undo_answer"),
    path(_PROJECT + "approvals/ruling/label", decisions.label_ruling, name="label_ruling"),
    path(_PROJECT + "approvals/remembered/delete", decisions.delete_remembered, name="delete_remembered"),
    path(_PROJECT + "policies", policy_pages.page, name="policies"),
    path(_PROJECT + "policies/change", change_here.page, name="change_setting"),
    path(_PROJECT + "policies/verify", change_here.verify, name="verify_setting"),
    path(_PROJECT + "policies/tool-rule", policy_pages.tool_rule, name="tool_rule"),
    path(_PROJECT + "policies/what-if", what_if.page, name="what_ifs"),
    path(_PROJECT + "policies/what-if/create", what_if.create, name="create_what_if"),
    path(_PROJECT + "policies/what-if/<str:public_id>", what_if.one, name="what_if"),
    path(_PROJECT + "policies/what-if/<str:public_id>/cancel", what_if.cancel, name="cancel_what_if"),
    path(_PROJECT + "policies/what-if/<str:public_id>/save", what_if.save, name="save_what_if"),
    path(_PROJECT + "policies/suggestions", suggestions.page, name="suggestions"),
    path(_PROJECT + "policies/suggestions/act", suggestions.act, name="suggestions_act"),
    path(_PROJECT + "policies/suggestions/try", suggestions.try_on_history, name="try_suggestion"),
    path(_PROJECT + "policies/exceptions", exceptions.page, name="exceptions"),
    path(_PROJECT + "policies/history", policy_pages.history, name="policy_history"),
    path(_PROJECT + "alerts", alert_pages.page, name="alerts"),
    path(_PROJECT + "alerts/act", alert_pages.act, name="alerts_act"),
    path(_PROJECT + "alerts/routes/new", alert_routes.page, name="new_alert_route"),
    path(_PROJECT + "alerts/routes/<str:public_id>", alert_routes.page, name="alert_route"),
    path(_PROJECT + "alerts/notifications/<str:public_id>", alert_pages.notification, name="notification"),
    path(_PROJECT + "statistics", statistics_page.page, name="statistics"),
    path(_PROJECT + "connect", connect.page, name="connect"),
    path(_PROJECT + "connect/attempts", connect.attempts, name="connect_attempts"),
    path(_PROJECT + "connect/base-url/<str:name>", base_urls.page, name="connect_base_url"),
    path(_PROJECT + "connect/guides/<slug:name>", connect.page, name="connect_guide"),
    path(_PROJECT + "connect/imports", imports.page, name="imports"),
    path(_PROJECT + "connect/imports/<str:public_id>", imports.one, name="import"),
    path(_PROJECT + "connect/imports/<str:public_id>/cancel", imports.cancel, name="cancel_import"),
    path(_PROJECT + "connect/sample", connect.send_sample, name="send_sample"),
    path(_PROJECT + "gateway", backends.page, name="gateway"),
    path(_PROJECT + "gateway/act", backends.act, name="gateway_act"),
    path(_PROJECT + "gateway/traffic", traffic.page, name="gateway_traffic"),
    path(_PROJECT + "gateway/prices", prices.page, name="prices"),
    path(_PROJECT + "gateway/prices/save", prices.save, name="save_price"),
    path(_PROJECT + "gateway/prices/delete", prices.delete, name="delete_price"),
    path(_PROJECT + "keys", keys.page, name="keys"),
    path(_PROJECT + "keys/revoke", keys.revoke, name="revoke_key"),
    path(_PROJECT + "keys/tags", keys.tag, name="tag_key"),
    path(_PROJECT + "settings", settings_hub.page, name="settings"),
    path(_PROJECT + "settings/project", project_pages.settings_page, name="project_settings"),
    path(_PROJECT + "members", members.page, name="members"),
    path(_PROJECT + "contain", containments.page, name="containments"),
    path(_PROJECT + "contained", containments.line, name="contained"),
    path(_PROJECT + "agents", agents.page, name="agents"),
    path(_PROJECT + "erasures", erasures.page, name="erasures"),
    path(_PROJECT + "ingest", ingest.page, name="ingest"),
    path(_PROJECT + "system", system.page, name="system"),
    path(_PROJECT + "quarantined-events", quarantine.page, name="quarantine"),
    path(_PROJECT + "audit", audit.page, name="audit"),
]
