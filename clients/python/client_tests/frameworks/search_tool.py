"""The tool that the agents of the tests call."""

from __future__ import annotations

import hashlib


class Tool:
    """The tool of a test: how often it really ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.content = ""

    def search(self, q: str) -> str:
        """Search the web."""
        self.runs += 1
        return "0 hits" if q == "x" else hashlib.sha256(q.encode()).hexdigest() + self.content

    many = [hashlib.sha256(bytes([number])).hexdigest() for number in range(60)]
    """Of a healthy run: each search is another one and finds something else."""
    queries = many[:12]
