"""The settings that decided about a call or a run, each with its value of then and of now, and where it is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detection.console import formatting
from detection.console.policies.change_here import CallNames, change_url, verify_url
from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.policy import ExplainedSetting, Policy

_GENERAL = ("preset", "enabled")


@dataclass(frozen=True, slots=True)
class DecidedSetting:
    """A setting that decided about a call, with its value of now where that differs.

    Attributes
    ----------
    is_reached
        Whether it is the limit that was reached.
    """

    name: str
    label: str
    value: str
    source: str
    now: str
    change_url: str
    verify_url: str
    is_reached: bool


def decided_settings(
    slug: str,
    then: Mapping[str, ExplainedSetting],
    now: Policy,
    call: CallNames,
    came_from: str,
    reached: str,
) -> list[DecidedSetting]:
    """Return the settings that decided about a call: first the limit that was reached, last what all detectors have.

    Parameters
    ----------
    then
        The settings as the verdict or the incident keeps them.
    now
        The policy of the same call today.
    came_from
        The page that shows them.
    reached
        See `reached_limit`.
    """
    return [
        DecidedSetting(
            name,
            FIELDS[name].label,
            value := formatting.setting_value(then[name].get("value"), name),
            source := str(then[name].get("source", "")),
            "" if (today := formatting.setting_value(now.values[name], name)) == value else today,
            change_url(slug, name, now.sources[name] or source, came_from, call),
            verify_url(slug, name, call),
            name == reached,
        )
        for name in sorted(then, key=lambda name: _place(name, then[name], reached))
        if name in FIELDS
    ]


def _place(name: str, setting: ExplainedSetting, reached: str) -> tuple[bool, bool, bool, bool]:
    """Return where a setting stands: after what was reached come values of people, and numbers."""
    is_of_preset = str(setting.get("source", "")).startswith("preset")
    is_number = type(setting.get("value")) in (int, float)
    return name != reached, name in _GENERAL, is_of_preset, not is_number


def reached_limit(kind: str, limit: int, then: Mapping[str, ExplainedSetting]) -> str:
    """Return the setting of a detector that had this limit; empty if several had, or if the run was granted more."""
    detector = detector_for(kind)
    limits = (detector.limit_setting, *detector.same_calls_limits, *detector.further_limits)
    found = [name for name in limits if then.get(name, {}).get("value") == limit]
    return found[0] if len(found) == 1 else ""
