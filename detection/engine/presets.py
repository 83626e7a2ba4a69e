"""Built-in presets: `standard`, `strict`, `lenient`, `observe`, and those of five known systems.

A preset contains the switches of all detectors and what else differs from the defaults. Every limit means "fires on the
n-th".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from detection.engine.detectors import DETECTORS
from detection.engine.field import AUTO

_STANDARD: dict[str, object] = {
    "mode": "block_then_stop",
    "graduated_rungs": ("warn", "warn", "block", "stop"),
    "repeat_warn_at": AUTO,
    "result_aware": True,
}

# The known systems react to every detection, never de-escalate, and count every call by itself.
_KNOWN_SYSTEM: dict[str, object] = {
    "counting_scope": "session",
    "once_per_round": False,
    "rung_gap_calls": 1,
    "escalation_decay_calls": 0,
    "ttl_from": "never",
}

# Some keep a history for each execution: a client that names none begins one with each message of a person.
_RUN_OF_EACH_MESSAGE: dict[str, object] = {"counting_scope": "run", "message_begins_run": True}

_BALANCED: dict[str, object] = {
    **_KNOWN_SYSTEM,
    **_RUN_OF_EACH_MESSAGE,
    "repeat_scope": "window",
    "window_calls": 10,
    "max_repeats": 3,
    "cycle_min_length": 2,
    "cycle_max_length": 5,
    "cycle_min_laps": 2,
    "cycle_unknown_laps": 2,
    "mode": "graduated",
    "escalation_scope": "session",
    "clear_on_stop": True,
}

_VALUES: dict[str, dict[str, object]] = {
    "standard": {**_STANDARD, "writes_once": True},
    "proxy": {**_KNOWN_SYSTEM, "ttl_from": "entry"},
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
        "similar_ratio": 0.8,
        "similar_max_calls": 3,
        "similar_window_calls": 10,
        "similar_method": "literal",
        "similar_ladder": "graduated",
        "outcome_ratio": 0.9,
        "outcome_max_results": 3,
        "outcome_max_errors": 3,
        "outcome_method": "literal",
    },
    "advisory": {
        **_KNOWN_SYSTEM,
        **_RUN_OF_EACH_MESSAGE,
        "identity": "raw",
        "repeat_scope": "run",
        "max_repeats": 2,
        "mode": "warn",
    },
    "interactive": {
        **_KNOWN_SYSTEM,
        "repeat_scope": "run",
        "mode": "ask",
        "reset_after_detection": "all",
    },
    "justified": {
        **_KNOWN_SYSTEM,
        **_RUN_OF_EACH_MESSAGE,
        "budget_max_rounds": 41,
        "budget_soft_rounds": False,
        # The notice comes with the 35th of 40 rounds.
        "budget_notice_share": 0.83,
        "budget_max_calls": 0,
        "budget_ladder": "justify",
        "judge_temperature": 0.3,
        "judge_sees_request": True,
    },
    "observe": {**_STANDARD, **{one.ladder: "observe" for one in DETECTORS if one.ladder}},
    # For agents that nobody watches: one call earlier, and fewer warnings before a call is blocked.
    "strict": {
        **_STANDARD,
        "graduated_rungs": ("warn", "block", "stop"),
        "max_repeats": 3,
        "outcome_max_results": 5,
        "outcome_max_errors": 3,
        "outcome_max_similar": 3,
        "stagnation_max_calls": 4,
    },
    # For agents with a person beside them, and tools that are called again for good reasons.
    "lenient": {
        **_STANDARD,
        "graduated_rungs": ("warn", "warn", "warn", "block", "stop"),
        "max_repeats": 5,
        "scattered_repeats": 5,
        "scattered_run_repeats": 6,
        "outcome_max_results": 8,
        "outcome_max_errors": 5,
        "outcome_max_similar": 5,
        "stagnation_max_calls": 6,
    },
}
_OWN = frozenset(("standard", "observe", "strict", "lenient"))
"""Presets with the detectors of `standard`."""

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        name: {
            **{one.switch: ("standard" if name in _OWN else name) in one.presets for one in DETECTORS},
            **values,
        }
        for name, values in _VALUES.items()
    }
)
"""Values of settings by preset; each detector declares the presets that turn it on."""
