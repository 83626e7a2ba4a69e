"""Built-in presets: `standard`, and the five systems LoopGuard grew from, each with its own limits.

A preset names only what differs from the fields' defaults. Limits are written as "fires at the n-th", whatever the
original counted. Applying overrides to a preset belongs to `policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from detection.engine.detectors import DETECTORS

_STANDARD: dict[str, Any] = {
    **{detector.switch: True for detector in DETECTORS},
    "repeat_warn_at": 3,
    "result_aware": True,
}

# The originals react on every detection, never forgive, and look at calls one by one.
_ORIGINAL: dict[str, Any] = {
    "counting_scope": "session",
    "once_per_round": False,
    "rung_gap_calls": 1,
    "escalation_decay_calls": 0,
    "ttl_from": "never",
}

_BALANCED: dict[str, Any] = {
    **_ORIGINAL,
    "counting_scope": "run",
    "repeat_scope": "window",
    "window_calls": 10,
    "max_repeats": 3,
    "cycle_enabled": True,
    "cycle_min_length": 2,
    "cycle_max_length": 5,
    "cycle_min_laps": 2,
    "cycle_unknown_laps": 2,
    "mode": "graduated",
    "escalation_scope": "session",
    "clear_on_stop": True,
}

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "standard": _STANDARD,
        "proxy": {**_ORIGINAL, "ttl_from": "entry"},
        "balanced": _BALANCED,
        "conservative": {
            **_BALANCED,
            "window_calls": 15,
            "max_repeats": 5,
            "cycle_min_length": 3,
            "cycle_min_laps": 3,
            "cycle_unknown_laps": 3,
            "graduated_rungs": ("warn", "warn", "warn", "stop"),
        },
        "aggressive": {
            **_BALANCED,
            "max_repeats": 2,
            "cycle_max_length": 4,
            "graduated_rungs": ("warn", "stop"),
        },
        "similarity": {
            **_BALANCED,
            "similar_enabled": True,
            "similar_ratio": 0.8,
            "similar_max_calls": 3,
            "similar_window_calls": 10,
            "similar_method": "literal",
            "similar_ladder": "graduated",
            "outcome_enabled": True,
            "outcome_ratio": 0.9,
            "outcome_max_results": 3,
            "outcome_max_errors": 3,
            "outcome_method": "literal",
        },
        "advisory": {
            **_ORIGINAL,
            "counting_scope": "run",
            "identity": "raw",
            "repeat_scope": "run",
            "max_repeats": 2,
            "mode": "warn",
        },
        "interactive": {**_ORIGINAL, "repeat_scope": "run", "mode": "ask", "reset_after_detection": "all"},
        "justified": {
            **_ORIGINAL,
            "counting_scope": "run",
            "repeat_enabled": False,
            "budget_enabled": True,
            "budget_max_rounds": 41,
            "budget_soft_rounds": False,
            "budget_max_calls": 0,
            "budget_ladder": "justify",
        },
        "observe": {**_STANDARD, **{detector.ladder: "observe" for detector in DETECTORS}},
    }
)
"""Field values by preset name."""
