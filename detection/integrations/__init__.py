"""Readers of other programs' formats: pure functions that return events of the API.

Nothing here decides, stores or responds; the forms of responses are in `engine.wire_shapes`.
"""
