"""Ids that people, programs and agents see."""

from __future__ import annotations

import secrets

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str, characters: int = 20) -> str:
    """Return a new opaque id with the prefix of its type; each character has five random bits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(characters))
