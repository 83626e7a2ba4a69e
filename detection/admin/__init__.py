"""The administration: projects, members, keys, stored settings and incidents. A thin door; see `base`."""

from detection.admin import incidents, keys, people, policies, projects

__all__ = ["incidents", "keys", "people", "policies", "projects"]
