"""Django admin: projects, members, keys and overrides; sessions, incidents, alerts and audit to read."""

from detection.admin import alerts, approvals, audit, gateway, incidents, keys, people, policies, projects

__all__ = ["alerts", "approvals", "audit", "gateway", "incidents", "keys", "people", "policies", "projects"]
