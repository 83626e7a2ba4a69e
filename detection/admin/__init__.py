"""The administration: projects, members, keys, stored settings, and records to look at. A thin door; see `base`."""

from detection.admin import alerts, approvals, audit, incidents, keys, people, policies, projects

__all__ = ["alerts", "approvals", "audit", "incidents", "keys", "people", "policies", "projects"]
