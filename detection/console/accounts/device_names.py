"""Names of browsers and systems, from user agent strings."""

from __future__ import annotations

_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


def device_name(agent: str) -> str:
    """Return a name such as "Firefox on Linux", or the beginning of an unknown user agent."""
    browser = next((words for part, words in _BROWSERS if part in agent), "")
    system = next((words for part, words in _SYSTEMS if part in agent), "")
    if browser and system:
        return f"{browser} on {system}"
    return browser or agent[:60] or "Unknown browser"
