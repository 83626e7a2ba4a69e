"""The installation that scenarios are played on, as a client with an administrator's key sees it."""

from __future__ import annotations

import time
from typing import Any

import httpx

from detection.engine.fields import FIELDS

Json = dict[str, Any]

_TIMEOUT_SECONDS = 30.0
_BUSY = frozenset((429, 503))
_TRIES, _PAUSE_SECONDS = 8, 0.25


class InstallationError(Exception):
    """The scenarios cannot be played on the installation; the message says why, and what to do."""


class Refused(Exception):
    """The installation refused one request, for a reason other than the key.

    Attributes
    ----------
    status
        Of the response.
    path
        The field at fault, if one is.
    """

    def __init__(self, request: str, status: int, document: Json) -> None:
        super().__init__(f"{request} is answered {status}: {document.get('detail', '')}")
        self.status = status
        self.path = str(document.get("path") or "")


class Installation:
    """The API of a running installation, for one project.

    Parameters
    ----------
    url, key
        Its address, and a key of the project with all scopes.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url.rstrip("/"), key
        self._client = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers={"Authorization": f"Bearer {key}"},
            timeout=_TIMEOUT_SECONDS,
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send(self, method: str, path: str, body: Any = None, **parameters: str) -> Json:
        """Send a request, again while the installation is busy, and return the response.

        Raises
        ------
        Refused
            When it is refused.
        InstallationError
            When nothing can be played: no LoopGuard answers, or it does not accept the key.
        """
        try:
            answer = self._client.request(method, path, json=body, params=parameters or None)
            for _ in range(_TRIES):
                if answer.status_code not in _BUSY:
                    break
                time.sleep(_PAUSE_SECONDS)
                answer = self._client.request(method, path, json=body, params=parameters or None)
        except httpx.InvalidURL as error:
            raise InstallationError(f"{self.url} is not an address: {error}") from None
        except httpx.HTTPError as error:
            raise InstallationError(
                f"No LoopGuard answers at {self.url}: {str(error) or type(error).__name__}"
            ) from None
        return self._document(method, path, answer)

    def _document(self, method: str, path: str, answer: httpx.Response) -> Json:
        if answer.status_code == 204:
            return {}
        try:
            document = answer.json()
            if not isinstance(document, dict):
                raise TypeError
        except (ValueError, TypeError):
            raise InstallationError(
                f"{self.url} is no LoopGuard: it answers {answer.status_code} without JSON."
            ) from None
        if answer.is_success:
            return document
        detail = document.get("detail", "")
        if answer.status_code == 401:
            raise InstallationError(f"{self.url} does not accept the key: {detail}")
        if answer.status_code == 403:
            raise InstallationError(f"The key may not {method} {path}; it needs all scopes: {detail}")
        raise Refused(f"{method} {path}", answer.status_code, document)

    def check_untouched(self) -> Json:
        """Return the settings of the environment.

        Raises
        ------
        InstallationError
            If other settings apply to the project: a scenario would not be played under its own.
        """
        policy = self.send("GET", "policy")["policy"]
        own = {name: one["source"] for name, one in policy.items() if not one["source"].startswith("preset:")}
        named = [f"{name} ({source})" for name, source in own.items() if source != "environment"]
        if named:
            raise InstallationError(
                f"The project has settings of its own: {', '.join(named)}. Play scenarios in a project without any."
            )
        return {name: _stored(policy[name]["value"]) for name in own}


def _stored(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def own_settings(environment: Json) -> Json:
    """Return the settings of an environment that a person set; whether there is a judge is no setting."""
    return {name: value for name, value in environment.items() if "server" in FIELDS[name].scopes}
