"""Versions and settings of the database server and the broker, compared with those that LoopGuard is tested on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import redis
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from detection import jobs

TESTED: Final = {"PostgreSQL": (15, 18), "Valkey": (9, 9), "Redis": (7, 7)}
"""Oldest and newest major version of each server that tests run on; docs/operations.md names the same."""
POLICY: Final = "noeviction"
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Server:
    """A server: its product and version, and what is wrong with them; `problem` is empty if nothing is."""

    product: str
    version: str
    problem: str = ""

    @property
    def is_too_old(self) -> bool:
        """Whether its major version is older than every tested one."""
        return _major(self.version) < TESTED[self.product][0]


def database_server(alias: str = DEFAULT_DB_ALIAS) -> Server:
    """Return the database server; one query.

    Parameters
    ----------
    alias
        The connection to ask on.

    Raises
    ------
    DatabaseError
        It does not answer.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version')")
        version = str(cursor.fetchone()[0]).partition(" ")[0]
    return Server("PostgreSQL", version, _untested("PostgreSQL", version))


def broker_server() -> Server:
    """Return the broker.

    Raises
    ------
    redis.RedisError
        It does not answer within half a second.
    """
    with redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_connect_timeout=jobs.BROKER_TIMEOUT_SECONDS,
        socket_timeout=jobs.BROKER_TIMEOUT_SECONDS,
    ) as client:
        try:
            # Hosted servers often forbid CONFIG; the policy is in INFO as well.
            facts = {**client.info("server"), **client.info("memory")}
        except redis.ResponseError as error:
            return Server("Broker", "", f"It does not tell its version and settings: {error}.")
    product = "Valkey" if "valkey_version" in facts else "Redis"
    version = str(facts.get("valkey_version") or facts.get("redis_version") or "")
    policy = str(facts.get("maxmemory_policy") or POLICY)
    problems = [_untested(product, version)]
    if policy != POLICY:
        problems.append(
            f"`maxmemory-policy` is {policy}: a full server would drop tasks and live updates. Set it to {POLICY}."
        )
    return Server(product, version, " ".join(filter(None, problems)))


def _untested(product: str, version: str) -> str:
    oldest, newest = TESTED[product]
    if oldest <= _major(version) <= newest:
        return ""
    tested = f"{oldest} to {newest}" if oldest != newest else f"{oldest}"
    return (
        f"{product} {version or 'of an unknown version'} is not supported; LoopGuard is tested on {tested}."
    )


def _major(version: str) -> int:
    number = _NUMBER.match(version)
    return int(number[0]) if number else 0
