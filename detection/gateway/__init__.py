"""The gateway: forwards requests of agents to model servers, and guards the tool calls in the responses.

Runs in `live`, outside Django's middleware. `protocols` is pure: it reads and rewrites requests and responses;
everything else here moves bytes.
"""
