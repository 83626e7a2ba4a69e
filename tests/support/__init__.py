"""Servers at the edges, agents and records that tests of several packages start from."""
