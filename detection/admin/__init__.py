"""The administration: projects, members, keys, stored settings, and records to look at. A thin door; see `base`."""

from detection.admin import alerts, audit, incidents, keys, people, policies, projects, questions

__all__ = ["alerts", "audit", "incidents", "keys", "people", "policies", "projects", "questions"]
