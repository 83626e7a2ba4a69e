"""Projects, their members, keys, agents and the pages of *Settings*."""
