"""Session files of Codex CLI (`~/.codex/sessions/**/rollout-*.jsonl`), read into events of the API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from detection.integrations.events import ReportedEvent, ReportedUsage
from detection.integrations.session_files import count_of, text_of
from detection.integrations.session_names import session_name
from detection.integrations.transcripts import events_of_message

AGENT: Final = "codex"


def is_codex_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is one of a session file of Codex."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("payload"), dict)
        and isinstance(entry.get("type"), str)
    )


def codex_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a session file, given the JSON value of each of its lines.

    The first description of a session counts: a file that continues another one repeats that one's. What belongs to one
    response of the model has no id; it ends with the count of its tokens.
    """
    common: ReportedEvent = {}
    round_number, counted = 1, None
    for entry in entries:
        if not is_codex_entry(entry):
            continue
        kind, payload = entry["type"], entry["payload"]
        if kind == "session_meta" and not common:
            common = _session(payload)
        elif kind == "turn_context":
            names: ReportedEvent = {}
            for name in ("cwd", "model"):
                if value := text_of(payload, name):
                    names[name] = value
            common = (common or _session({})) | names
        at: ReportedEvent = (common or _session({})) | {"occurred_at": entry.get("timestamp")}
        if kind == "compacted":
            yield at | {"type": "compaction"}
        elif kind == "response_item":
            for event in events_of_message(payload, "responses"):
                yield at | {"round": f"response-{round_number}"} | event
        elif kind == "event_msg" and payload.get("type") == "token_count":
            info = payload.get("info")
            total = info.get("total_token_usage") if isinstance(info, dict) else None
            usage = _usage(info.get("last_token_usage")) if isinstance(info, dict) else None
            # Limits of the provider are reported with the same count again.
            if usage is not None and total != counted:
                yield at | {"type": "usage", "round": f"response-{round_number}", "usage": usage}
                counted, round_number = total, round_number + 1


def _session(about: dict[str, object]) -> ReportedEvent:
    cwd = text_of(about, "cwd")
    common: ReportedEvent = {
        "session": session_name(text_of(about, "id"), program=AGENT, place=cwd),
        "agent": AGENT,
        "backend": text_of(about, "model_provider") or "openai",
    }
    return common | {"cwd": cwd} if cwd else common


def _usage(usage: Any) -> ReportedUsage | None:
    if not isinstance(usage, dict):
        return None
    return {
        "input_tokens": count_of(usage, "input_tokens"),
        "output_tokens": count_of(usage, "output_tokens"),
        "cached_tokens": count_of(usage, "cached_input_tokens"),
        "cache_write_tokens": 0,
        "cost_usd": None,
    }
