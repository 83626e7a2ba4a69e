"""Identity of loops: the features that one loop has in common across sessions and agents.

Arguments differ from session to session, so they do not count; the tool, the detector and the sort of result do. All
shells are one tool to an agent's instructions but not to the person who has to repair something, so a shell command
counts by its program.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import orjson

from detection.engine.detectors import detector_for
from detection.engine.detectors.base import NAMES_ONLY
from detection.engine.dispatching import ARROW, inner
from detection.engine.identity import smallest_rotation
from detection.engine.shell_commands import ShellLine
from detection.engine.tool_classes import shipped_traits

# 128 bits, as the digests of calls.
DIGEST_HEX = 32
SEVERAL_TOOLS = ""
# As `messages.MAX_TOOL_CHARACTERS`, because it stands in the place of a tool's name.
_MAX_CYCLE_NAME = 128
_SORTS_OF_RESULTS = ("errors", "empty")
_DETAILS = ("trouble", "unit")
"""Details of findings that tell loops apart: the trouble of a provider, the unit of a spent budget."""
ANY_ARGUMENTS = "any arguments"
"""Detail of loops of repeated calls that were compared by their tools alone."""
_NOT_A_NAME = re.compile(r"[^\w .:/-]")
# Details are words such as `rate limit`; a judgement.
_MAX_DETAIL = 32


@dataclass(frozen=True, slots=True)
class LoopIdentity:
    """What the incidents of a loop have in common by definition.

    Attributes
    ----------
    kind
        Detector.
    tool
        The tool, the tools of a lap joined by arrows, or nothing for loops of several tools in no order and for run
        limits.
    program
        Program of the shell command, with its verb where it has one, such as ``git push``; empty for other tools.
    results
        ``errors``, ``empty``, or nothing for all other results.
    detail
        The trouble of a provider, the unit of a budget, or `ANY_ARGUMENTS`.
    """

    kind: str
    tool: str = ""
    program: str = ""
    results: str = ""
    detail: str = ""

    @property
    def key(self) -> str:
        """The identity as a digest of 32 hexadecimal digits."""
        text = "\x00".join(astuple(self))
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:DIGEST_HEX]

    @property
    def stands_alone(self) -> bool:
        """Whether its incidents never belong to the loop of another loop about the same calls.

        This is true for run limits and for provider trouble, which is not the agent's loop.
        """
        return self.detail not in ("", ANY_ARGUMENTS) or detector_for(self.kind).is_run_limit


def identify(
    kind: str, tool: str, results: str, detail: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]
) -> LoopIdentity:
    """Return the identity of an incident's loop.

    Parameters
    ----------
    tool
        As the incident has it: for a cycle, the tools of a lap joined by arrows.
    results
        What the finding says about the results.
    detail
        Details of the finding.
    calls
        Copies of the calls of the loop, each with ``tool`` and, where stored, ``arguments``; the last one counts.
    """
    told_apart = next((str(detail[name]) for name in _DETAILS if detail.get(name)), "")
    told_apart = _NOT_A_NAME.sub("", told_apart)[:_MAX_DETAIL]
    detector = detector_for(kind)
    if detector.is_run_limit:
        return LoopIdentity(kind, detail=told_apart)
    if not told_apart and detector.is_exact and detail.get(NAMES_ONLY):
        told_apart = ANY_ARGUMENTS
    sort = results if results in _SORTS_OF_RESULTS else ""
    if detector.spans_tools:
        return LoopIdentity(kind, cycle_name(tool.split(ARROW)), results=sort, detail=told_apart)
    if len({str(call.get("tool", tool)) for call in calls}) > 1:
        return LoopIdentity(kind, SEVERAL_TOOLS, results=sort, detail=told_apart)
    return LoopIdentity(kind, tool, _program(tool, calls), sort, told_apart)


def cycle_name(lap: Iterable[str]) -> str:
    """Return the different tools of a lap joined by arrows, the same whichever call of the cycle came first.

    A call that dispatches another one is named by that, so that every arrow leads to the next call.
    """
    return ARROW.join(smallest_rotation([*dict.fromkeys(map(inner, lap))]))[:_MAX_CYCLE_NAME]


def _program(tool: str, calls: Sequence[Mapping[str, Any]]) -> str:
    if not calls or not shipped_traits(tool).is_shell:
        return ""
    text = str(calls[-1].get("arguments") or "")
    try:
        return ShellLine(orjson.loads(text)).program
    except orjson.JSONDecodeError:
        return ShellLine(text).program


def title(headline: str, tool: str, program: str, detail: str) -> str:
    """Return the title of a loop, such as ``Repeated call: bash (git push)``."""
    subject = tool or ("" if detail else "several tools")
    parts: Iterable[str] = (
        subject or detail,
        f"({program})" if program else "",
        f"({detail})" if subject and detail else "",
    )
    words = " ".join(part for part in parts if part)
    return f"{headline}: {words}" if words else headline
