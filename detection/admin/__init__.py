"""Django admin: overrides, tool rules, projects, members, people and keys to change; all other records to read."""

from detection.admin import keys, people, policies, projects, records

__all__ = ["keys", "people", "policies", "projects", "records"]
