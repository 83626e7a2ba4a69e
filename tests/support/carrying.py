"""Which functions of the product carry an event, a session or a verdict while real requests are served.

A function carries one if it reads an attribute of it, is given it, hands it on or returns it: also in a container, in
an object of the product that holds it, or through its `self`. The engine is left out. Parts of a function, such as the
loops that Python makes functions of, belong to it; a function that is written within another one counts by itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from django.db.models import Model

from detection.console.sessions.session_rows import SessionLine
from detection.engine.calls import Step, Verdict
from detection.gateway.conversation import Conversation, Turn
from detection.gateway.protocols.answers import Answer, AnswerVerdict, Resolution
from detection.gateway.verdicts import JudgedAnswer
from detection.models import Event, Session
from detection.models.stored_verdict import StoredVerdict
from detection.selectors.session_rows import SessionRow
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import CallResponse, GuardRequest, GuardResponse

ROOT = Path(__file__).parents[2]
PRODUCT = (f"{ROOT}/detection/", f"{ROOT}/loopguard_site/")
ENGINE = f"{ROOT}/detection/engine/"
OF_CALLS = (
    EventRecord, Event, GuardRequest, Session, SessionRow, SessionLine, Step, Verdict, StoredVerdict, CallResponse,
    GuardResponse,
)  # fmt: skip
"""The shapes of events, sessions and verdicts."""
OF_GATEWAY = (Conversation, Turn, Answer, AnswerVerdict, Resolution, JudgedAnswer)
"""Those of a request through the gateway, before and after the guard."""
_DOCUMENTS = ({"type", "session"}, {"call_id", "tool"}, {"call_id", "decision"})
"""Fields by which the JSON of an event, a call and a verdict is known."""
_DEPTH = 4
_MAX_ITEMS = 20
_PARTS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<locals>")


class Carriers:
    """The functions that carry one of these shapes, as file and name, in the order in which they were met."""

    def __init__(self, shapes: tuple[type, ...], folders: tuple[str, ...]) -> None:
        self.shapes, self._folders = shapes, folders
        self.functions: dict[tuple[str, str], None] = {}
        self._here = threading.local()

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}

    def observe(self, frame: FrameType, event: str, value: Any) -> None:
        """Note a function that is entered or left; the profile function of a thread."""
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(self._folders):
            return
        if getattr(self._here, "is_busy", False):
            return
        self._here.is_busy = True
        try:
            if event == "return":
                if self._holds(value):
                    self._note(frame)
            elif any(self._holds(one) for one in _given(frame)):
                self._note(frame)
                self._note(frame.f_back)
        finally:
            self._here.is_busy = False

    def note_reader(self, frame: FrameType) -> None:
        """Note the function that reads an attribute of a shape; not what this class reads itself."""
        if not getattr(self._here, "is_busy", False):
            self._note(frame)

    def _note(self, frame: FrameType | None) -> None:
        file = frame.f_code.co_filename if frame is not None else ""
        if frame is None or not file.startswith(self._folders) or file.startswith(ENGINE):
            return
        parts = frame.f_code.co_qualname.split(".")
        while parts and parts[-1] in _PARTS:
            parts.pop()
        if parts and parts[-1] != "<module>":
            self.functions[file.removeprefix(f"{ROOT}/"), ".".join(parts)] = None

    def _holds(self, value: Any, depth: int = _DEPTH) -> bool:
        if isinstance(value, self.shapes):
            return True
        if not depth or isinstance(value, str | bytes | int | float | type | Model):
            return False
        inner: Iterable[Any] = ()
        if isinstance(value, dict):
            if any(fields <= value.keys() for fields in _DOCUMENTS):
                return True
            inner = value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            inner = value
        elif type(value).__module__.startswith(("detection.", "loopguard_site.")):
            inner = _attributes(value)
        return any(self._holds(one, depth - 1) for one in [*inner][:_MAX_ITEMS])


def _given(frame: FrameType) -> Iterator[Any]:
    """Yield the arguments of a function and what it uses of the one around it; of `self`, what it reads counts."""
    code: CodeType = frame.f_code
    number = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    for name in (*code.co_varnames[:number], *code.co_freevars):
        if name in frame.f_locals and name not in ("self", "cls"):
            yield frame.f_locals[name]


def _attributes(value: Any) -> Collection[Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    held = [object.__getattribute__(value, name) for name in slots if _has(value, name)]
    return [*held, *getattr(value, "__dict__", {}).values()]


def _has(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return name != "__weakref__"


@contextmanager
def carrying(shapes: tuple[type, ...] = OF_CALLS, folders: tuple[str, ...] = PRODUCT) -> Iterator[Carriers]:
    """Find what carries these shapes in this thread, and in those that start within the block."""
    carriers = Carriers(shapes, folders)

    def read(value: Any, name: str) -> Any:
        if not name.startswith("__"):
            carriers.note_reader(sys._getframe(1))
        return object.__getattribute__(value, name)

    for shape in shapes:
        shape.__getattribute__ = read  # type: ignore[assignment]
    before = sys.getprofile()
    threading.setprofile(carriers.observe)
    sys.setprofile(carriers.observe)
    try:
        yield carriers
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        for shape in shapes:
            del shape.__getattribute__
