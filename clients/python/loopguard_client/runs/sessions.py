"""What the server knows about the sessions of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from loopguard_client.credentials import Credentials
from loopguard_client.transport import NoAnswer, Transport

ANSWER_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 6.0
"""How long to wait for events that the server has not evaluated, and for the telemetry of a program that has ended."""
LOOK_AGAIN_SECONDS: Final = 0.5
MAX_PAGES: Final = 10
"""Of 100 sessions each. A judgement: a run with more is a service, of which a person looks at the console."""


class Refused(Exception):
    """The server did not answer a question. The text says why."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A session that was to be stopped.

    Attributes
    ----------
    session, link : str
        Its name, and its page in the console.
    kind : str
        Who stopped it: `detection`, `person` or `containment`.
    by, reason : str
        The detector, user or key, and why.
    ran : int
        Calls that ran afterwards.
    """

    session: str
    link: str
    kind: str
    by: str
    reason: str
    ran: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the run: its title and its page, and whether the run was in it until its end, with blocked calls."""

    title: str
    link: str
    was_last: bool


@dataclass(slots=True)
class Figures:
    """The figures of a run.

    Attributes
    ----------
    sessions, calls, blocked, tokens, cost_usd
        Of sessions whose calls pass through LoopGuard.
    telemetry_sessions, telemetry_cost_usd
        Of sessions that only telemetry reports: they may describe the same calls.
    is_settled, is_whole
        Whether everything that has arrived is evaluated, and whether all sessions are counted.
    stops
        Sessions that are to be stopped.
    """

    sessions: int = 0
    calls: int = 0
    blocked: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    telemetry_sessions: int = 0
    telemetry_cost_usd: float = 0.0
    is_settled: bool = True
    is_whole: bool = True
    stops: list[Stop] = field(default_factory=list)

    @property
    def largest_cost_usd(self) -> float:
        """The cost to compare a budget with, in US dollars."""
        return max(self.cost_usd, self.telemetry_cost_usd)


class Server:
    """Questions about a run, each with a deadline.

    Parameters
    ----------
    found : Credentials
        Address and key; the key needs the scope `read`.
    tag : str
        The tag of the run.
    """

    def __init__(self, found: Credentials, tag: str) -> None:
        self._transport = Transport(found.url, found.key, "loopguard-client")
        self._filter = quote(f"tag:{tag}", safe="")

    def ask(self, path: str, method: str = "GET", document: Any = None) -> tuple[int, Mapping[str, Any]]:
        """Return the status and the document of an answer; raises `NoAnswer`."""
        future = self._transport.send(method, path, document, seconds=ANSWER_SECONDS)
        try:
            answer = future.result(ANSWER_SECONDS)
        except Late:
            raise NoAnswer(f"{self._transport.url} did not answer in time.") from None
        return answer.status, answer.document

    def rows(self, path: str, more: str = "") -> tuple[Sequence[Mapping[str, Any]], bool]:
        """Return the rows of a list of this run, and whether these are all.

        Parameters
        ----------
        more
            A further filter.

        Raises
        ------
        Refused
            The server did not answer, or refused.
        """
        rows: list[Mapping[str, Any]] = []
        cursor = ""
        for _ in range(MAX_PAGES):
            about = f"{path}?q={self._filter}{quote(more)}&limit=100" + (
                f"&cursor={quote(cursor)}" if cursor else ""
            )
            try:
                status, document = self.ask(about)
            except NoAnswer as error:
                raise Refused(str(error)) from None
            if status != 200:
                raise Refused(why(status, document))
            rows += document.get("items", ())
            cursor = str(document.get("next_cursor") or "")
            if not cursor:
                return rows, True
        return rows, False

    def figures(self) -> Figures:
        """Return the figures of the run as the server has them now; raises `Refused`."""
        rows, is_whole = self.rows("/sessions")
        figures = Figures(is_whole=is_whole)
        for row in rows:
            figures.is_settled = figures.is_settled and not row["pending_events"]
            if row["integration"] == "otlp":
                figures.telemetry_sessions += 1
                figures.telemetry_cost_usd += row["cost_usd"]
            else:
                figures.sessions += 1
                figures.calls += row["calls"]
                figures.blocked += row["blocked"]
                figures.tokens += row["tokens"]
                figures.cost_usd += row["cost_usd"]
            link = str(row["links"]["session"])
            if stop := row["stopped"]:
                figures.stops.append(
                    Stop(row["session"], link, stop["kind"], stop["by"], stop["reason"], stop["ran"])
                )
        return figures

    def settled_figures(self) -> Figures:
        """Return the figures once two looks in a row are alike and everything is evaluated, or time is up."""
        deadline = time.monotonic() + SETTLE_SECONDS
        last = self.figures()
        while time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN_SECONDS)
            now = self.figures()
            if now == last and now.is_settled:
                return now
            last = now
        last.is_settled = False
        return last

    def loops(self) -> tuple[Sequence[Loop], bool]:
        """Return the loops of the run, and whether these are all; raises `Refused`."""
        rows, is_whole = self.rows("/loops")
        # Warned of alone is not enough: a run may end after the third identical call by itself.
        ended_in = {row["id"] for row in self.rows("/loops", " recovered:no blocked:>0")[0]}
        loops = [Loop(row["title"], str(row["links"]["loop"]), row["id"] in ended_in) for row in rows]
        return loops, is_whole


def why(status: int, document: Mapping[str, Any]) -> str:
    """Return in a sentence why the server refused."""
    return str(document.get("detail") or f"The server answered {status}.")
