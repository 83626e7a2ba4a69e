"""Readers of what other programs send: pure functions from their formats to the events of the API.

Nothing here decides, stores or responds; the forms of responses are in `engine.wire_shapes`.
"""
