"""What the scenarios of one run have in common: the installation, the settings that they put there, and the judge."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

from development.measuring.entry_points.clocks import Clock
from development.measuring.entry_points.installation import (
    Installation,
    InstallationError,
    Refused,
    own_settings,
)
from development.measuring.entry_points.judge import ScriptedJudge
from development.measuring.entry_points.scripted_model import MODEL, ScriptedModel

Json = dict[str, Any]


class Stage:
    """An installation on which scenarios are played.

    Each set of settings belongs to a backend of its own, so that scenarios with different ones are played at the same
    time. Sessions stay for people to look at; settings are removed by `clear`.

    Attributes
    ----------
    environment
        The settings that the installation has from its environment.
    prefix
        What the names of this run's sessions and backends begin with.
    judge
        The judge that the installation asks; None if no scenario may ask one.
    model
        The model server behind the gateway; None without one.
    """

    def __init__(
        self,
        installation: Installation,
        clock: Clock,
        judge: ScriptedJudge | None = None,
        model: ScriptedModel | None = None,
    ) -> None:
        self.installation, self.clock, self.judge, self.model = installation, clock, judge, model
        environment = installation.check_untouched()
        self.environment = own_settings(environment)
        if not environment.get("judge_available"):
            self.judge = None
        self.prefix = f"conformance-{secrets.token_hex(3)}"
        self._backends: dict[str, str] = {}
        self._gateways: dict[str, Json] = {}
        self._overrides: list[Mapping[str, str]] = []
        self._lock = threading.Lock()
        if self.judge is not None:
            self._put({"judge_sees_request": True})

    def check_clock(self, expected_seconds: float) -> None:
        """Check that the installation reads the test clock.

        Raises
        ------
        InstallationError
            If its time is another one.
        """
        session = f"{self.prefix}/clock"
        self.installation.send(
            "POST", "guard", {"session": session, "calls": [{"tool": "conformance_clock", "arguments": {}}]}
        )
        seen = self.installation.send("GET", f"sessions/{quote(session)}")["last_event_at"]
        if abs(datetime.fromisoformat(seen).timestamp() - expected_seconds) > 1e-3:
            raise InstallationError(
                "The installation does not read this test clock. Start it with LOOPGUARD_MODE=test and "
                "LOOPGUARD_TEST_CLOCK set to the same file."
            )

    def backend(self, own: Json, of_model: Json) -> str:
        """Return the name of a backend with these settings, and others for the model `MODEL`.

        Raises
        ------
        Refused
            For a setting that is invalid.
        """
        key = repr((sorted(own.items()), sorted(of_model.items())))
        with self._lock:
            if key not in self._backends:
                name = f"{self.prefix}-{len(self._backends)}"
                self._put(own, backend=name)
                if of_model:
                    self._put(of_model, backend=name, model=MODEL)
                self._backends[key] = name
            return self._backends[key]

    def gateway_of(self, own: Json, of_model: Json) -> str:
        """Return the base URL of the gateway for agents whose calls have these settings.

        Raises
        ------
        Refused
            For a setting that is invalid, and for an address that the installation does not allow.
        """
        name = self.backend(own, of_model)
        with self._lock:
            if name not in self._gateways and self.model is not None:
                self._gateways[name] = self.installation.send(
                    "POST", "backends", {"name": name, "kind": "openai", "base_url": self.model.url}
                )
            return str(self._gateways[name]["gateway_url"])

    def _put(self, values: Json, **scope: str) -> None:
        self._overrides.append(scope)
        self.installation.send("PUT", "overrides", {"values": values, "note": "conformance"}, **scope)

    def clear(self) -> None:
        """Remove all settings and backends that were put there."""
        for gateway in self._gateways.values():
            with suppress(Refused, InstallationError):
                self.installation.send("DELETE", f"backends/{gateway['id']}")
        for scope in reversed(self._overrides):
            with suppress(Refused, InstallationError):
                self.installation.send("DELETE", "overrides", note="conformance", **scope)
