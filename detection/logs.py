"""Log lines: one structured line per event, safe against injected newlines. Contains no log calls."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

_TOKEN: Final = re.compile(r"(lgw?_[0-9a-z]{10})_[0-9a-f]{72}")
"""Keys, and the tokens in base URLs of the gateway. Their readable part is kept."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_CONTROL_IN_TRACEBACK: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def escape_control_characters(
    _logger: Any, _name: str, entry: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape what would start another line, move the cursor of a terminal or turn the direction of writing."""
    for key, value in entry.items():
        if isinstance(value, str):
            # A traceback has many lines; they are the only ones.
            pattern = _CONTROL_IN_TRACEBACK if key == "exception" else _CONTROL
            entry[key] = pattern.sub(_escaped, value)
    return entry


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def mask_tokens(
    _logger: Any, _name: str, line: str | bytes | bytearray | MutableMapping[str, Any] | tuple[Any, ...]
) -> str | bytes | bytearray | Mapping[str, Any] | tuple[Any, ...]:
    """Mask the secrets of keys and tokens in a finished line."""
    return _TOKEN.sub(r"\1_…", line) if isinstance(line, str) else line


def formatter(json: bool = False, level: str = "INFO") -> logging.Formatter:
    """Return the formatter for all handlers.

    Parameters
    ----------
    json
        One JSON object per line (for programs) instead of readable text.
    level
        Lowest level that is written; a log call below it costs next to nothing.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            escape_control_characters,
            renderer,
            mask_tokens,
        ],
    )
