"""Where alerts can go: a tile for each, with the form of its address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class AlertService:
    """A service that announces alerts.

    Attributes
    ----------
    name, title, letters
        Name in addresses of pages, title for people, and what its tile shows instead of a logo.
    example
        The form of its address.
    where
        Where a person finds the address.
    """

    name: str
    title: str
    letters: str
    example: str
    where: str


ALERT_SERVICES: Final = (
    AlertService(
        "slack",
        "Slack",
        "#",
        "https://hooks.slack.com/services/T…/B…/…",
        "Slack, Apps, Incoming Webhooks, Add to Slack: copy the webhook URL.",
    ),
    AlertService(
        "teams",
        "Teams",
        "T",
        "https://….logic.azure.com/workflows/…",
        "Teams, Workflows, “Post to a channel when a webhook request is received”: copy the URL.",
    ),
    AlertService(
        "discord",
        "Discord",
        "D",
        "https://discord.com/api/webhooks/…/…",
        "Discord, Channel settings, Integrations, Webhooks: copy the webhook URL.",
    ),
    AlertService(
        "email",
        "E-mail",
        "@",
        "mailtos://user:password@smtp.example.com?to=name@example.com",
        "The mail server that sends, with its account, and who gets the mail.",
    ),
    AlertService(
        "pagerduty",
        "PagerDuty",
        "P",
        "pagerduty://integration-key@api-key",
        "PagerDuty, Service, Integrations, Events API v2: the integration key.",
    ),
    AlertService(
        "webhook",
        "Webhook",
        "{}",
        "https://example.com/loopguard",
        "An address of your own. Notifications are signed; the test shows the secret that verifies them.",
    ),
    AlertService(
        "other",
        "Others",
        "…",
        "ntfys://topic, tgram://token/chat, opsgenie://key …",
        "Any service that Apprise knows and that needs nothing of this machine.",
    ),
)
SERVICES: Final = {one.name: one for one in ALERT_SERVICES}
"""By name."""
