"""The HTTP API for agents, scripts and other programs. Services contain the rules, selectors the reads."""
