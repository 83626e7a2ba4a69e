"""Runs a program, and says what guards it, how it ended, and who stopped it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import quote

from loopguard_client import credentials, wire
from loopguard_client.credentials import Credentials
from loopguard_client.runs.hooks import HooksForRun, NoHooks, hooks_for_run, host_of
from loopguard_client.runs.providers import PROVIDERS, Provider
from loopguard_client.runs.relay import Relay, Route
from loopguard_client.runs.sessions import Figures, Loop, Refused, Server, why
from loopguard_client.transport import NoAnswer

LOOP: Final = 75
"""Exit code of a run that was in a loop at its end, or that detection stopped: `EX_TEMPFAIL`."""
STOPPED: Final = 76
"""Exit code of a run that a person, a containment or its budget stopped."""
TIME_IS_UP: Final = 124
"""Exit code of a run that its deadline ended, as of `timeout`."""
NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
"""Exit codes when the program did not run, as of `timeout` and `env`."""
END_SECONDS: Final = 10.0
"""How long a program may take to end after SIGTERM; then it gets SIGKILL."""
WATCH_SECONDS: Final = 2.0
"""How often the cost is compared with the budget."""
_OTLP: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"


class NotStarted(Exception):
    """The program was not started. The text says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is to be.

    Attributes
    ----------
    command : sequence of str
        The program and its arguments.
    tags : sequence of str
        Tags of its sessions, beside the one of the run.
    budget_usd : float or None
        The cost at which the program is ended, in US dollars.
    deadline_seconds : float or None
        The time after which it is ended.
    fail_closed : bool
        Do not start it, and refuse its model requests and tool calls, while LoopGuard is away.
    """

    command: Sequence[str]
    tags: Sequence[str] = ()
    budget_usd: float | None = None
    deadline_seconds: float | None = None
    fail_closed: bool = False


@dataclass(slots=True)
class _Guarded:
    """What guards the program: variables, arguments, and the words about it."""

    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    routes: dict[str, Route] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def run(options: Options, found: Credentials) -> int:
    """Run a program under LoopGuard and return the exit code of this process.

    Raises
    ------
    NotStarted
        It was not started, because LoopGuard cannot guard it and `fail_closed` is set, or cannot watch its budget.
    """
    return _Run(options, found).run()


class _Run:
    def __init__(self, options: Options, found: Credentials) -> None:
        self._options, self._found = options, found
        self._tag = wire.new_id("run-")[:16]
        self._tags = ",".join((self._tag, *options.tags))
        self._server = Server(found, self._tag)
        self._can_read = True
        self._ended_by = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_group = os.name != "nt" and not sys.stdin.isatty()
        """Whether the program has a process group of its own; on a terminal it shares ours, to get its signals."""

    def run(self) -> int:
        guarded = _Guarded()
        self._ask_server(guarded)
        headers = {"LoopGuard-Key": self._found.key, "LoopGuard-Tags": self._tags}
        relay = None
        with contextlib.ExitStack() as closing:
            if guarded.routes:
                relay = Relay(guarded.routes, headers, fail_closed=self._options.fail_closed, tell=_tell)
                closing.callback(relay.close)
                self._point(guarded, relay)
            self._set_hooks(guarded, closing)
            self._set_telemetry(guarded)
            command = [self._options.command[0], *guarded.arguments, *self._options.command[1:]]
            _tell(f"{self._tag} with {self._found.url} runs: {shlex.join(self._options.command)}")
            for line in (*guarded.lines, *self._limits()):
                _tell(f"  {line}")
            started = time.monotonic()
            try:
                status = self._wait(command, {**os.environ, **guarded.environment})
            except FileNotFoundError:
                _tell(f"{command[0]} was not found.")
                return NOT_FOUND
            except OSError as error:
                _tell(f"{command[0]} cannot be run: {error.strerror}.")
                return NOT_EXECUTABLE
            _tell(f"{self._tag} {self._how(status)} after {_duration(time.monotonic() - started)}.")
            if relay is not None and (relay.past or relay.refused):
                _tell(
                    f"  While LoopGuard was away, {_count(relay.past, 'model request')} went past it"
                    f" and {relay.refused} were refused."
                )
        return self._summary(status if status >= 0 else 128 - status)

    def _ask_server(self, guarded: _Guarded) -> None:
        """Find out what the server can do for this run."""
        try:
            status, document = self._server.ask(
                "/guard", "POST", {}
            )  # not a call: complete ones are answered 200
            if status != 422:
                raise Refused(why(status, document))
            status, document = self._server.ask("/backends?limit=100")
        except (NoAnswer, Refused) as error:
            self._can_read = False
            self._refuse_or_tell(f"Nothing is guarded by the gateway: {error}")
            return
        self._can_read = status == 200
        if self._can_read:
            self._find_routes(guarded, document)
        else:
            guarded.lines.append(
                f"model requests are not guarded, and there is no summary at the end: {why(status, document)}"
            )
        if self._options.budget_usd is not None:
            self._check_budget(status, document)

    def _refuse_or_tell(self, text: str) -> None:
        if self._options.fail_closed or self._options.budget_usd is not None:
            reason = "this run fails closed" if self._options.fail_closed else "its budget cannot be watched"
            raise NotStarted(f"{text} The program was not started, because {reason}.")
        _tell(f"{text} The program runs all the same.")

    def _check_budget(self, status: int, document: Mapping[str, object]) -> None:
        if not self._can_read:
            raise NotStarted(
                f"The budget cannot be watched: {why(status, document)} The program was not started."
            )
        status, prices = self._server.ask("/prices?limit=1")
        if status == 200 and not prices.get("items"):
            _tell("The project has no prices: costs that are not reported are unknown, and count nothing.")

    def _find_routes(self, guarded: _Guarded, document: Mapping[str, object]) -> None:
        rows = document.get("items")
        for provider in PROVIDERS:
            wanted = provider.given(os.environ) or provider.base_url
            row = next(
                (
                    one
                    for one in (rows if isinstance(rows, list) else ())
                    if one["kind"] == provider.kind
                    and one["is_enabled"]
                    and wanted in (one["base_url"].rstrip("/"), one["gateway_url"])
                ),
                None,
            )
            if row is None:
                guarded.lines.append(
                    f"{provider.title}: requests are not guarded; the project has no backend for {wanted}"
                )
            else:
                route = Route(row["gateway_url"], row["base_url"].rstrip("/"), provider.version)
                guarded.routes[provider.kind] = route

    def _point(self, guarded: _Guarded, relay: Relay) -> None:
        program = Path(self._options.command[0]).name
        for provider in PROVIDERS:
            if provider.kind not in guarded.routes:
                continue
            address = relay.url(provider.kind)
            for name in provider.variables:
                guarded.environment[name] = address
            given = [word.replace("{}", address) for word in provider.arguments_of(program)]
            guarded.arguments += given
            guarded.lines.append(
                f"{provider.title}: requests of programs that read {_names(provider, given)} are guarded"
            )
        # A proxy of the network has nothing to do with an address of this machine.
        for name in ("NO_PROXY", "no_proxy"):
            before = os.environ.get(name, "")
            guarded.environment[name] = f"{before},127.0.0.1" if before else "127.0.0.1"

    def _set_hooks(self, guarded: _Guarded, closing: contextlib.ExitStack) -> None:
        host = host_of(self._options.command)
        if host is None:
            return
        closing.enter_context(credentials.in_folder(closing.enter_context(_folder_for_run())))
        try:
            hooks: HooksForRun = hooks_for_run(
                host, self._options.command, self._found, self._tags, fail_closed=self._options.fail_closed
            )
        except NoHooks as problem:
            guarded.lines.append(str(problem))
            return
        guarded.arguments[:0] = hooks.arguments
        guarded.environment.update(hooks.environment)
        guarded.lines.append(f"{hooks.title}: hooks for this run")

    def _set_telemetry(self, guarded: _Guarded) -> None:
        guarded.environment["LOOPGUARD_TAGS"] = self._tags
        if os.environ.get(_OTLP):
            guarded.lines.append(f"telemetry goes where {_OTLP} says")
            return
        bearer = quote(f"Bearer {self._found.key}", safe="")
        guarded.environment |= {
            _OTLP: f"{self._found.url}/api/v1/otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization={bearer},LoopGuard-Tags={quote(self._tags, safe='')}",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        }
        guarded.lines.append("telemetry of programs with OpenTelemetry is reported")

    def _limits(self) -> Iterator[str]:
        if self._options.deadline_seconds is not None:
            yield f"it is ended after {_duration(self._options.deadline_seconds)}"
        if self._options.budget_usd is not None:
            yield f"it is ended when its known cost reaches ${self._options.budget_usd:,.2f}"

    # The process

    def _wait(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start the program, wait for its end, and return its status; negative: the signal that ended it."""
        waiting: list[int] = []

        def pass_on(number: int, _: FrameType | None) -> None:
            if self._process is None:
                waiting.append(number)
            elif self._is_group or number not in (signal.SIGINT, getattr(signal, "SIGQUIT", None)):
                self._signal(number)  # else the terminal has sent it to the program, too

        before = {}
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            if (number := getattr(signal, name, None)) and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, pass_on)
        over = threading.Event()
        try:
            self._process = subprocess.Popen(
                command, env=dict(environment), process_group=0 if self._is_group else None
            )
            for number in waiting:
                self._signal(number)
            watcher = threading.Thread(target=self._watch, args=(over,), daemon=True)
            watcher.start()
            status = self._process.wait()
        finally:
            over.set()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._ended_by and self._is_group:  # what it has started
            self._signal(signal.SIGKILL)
        return status

    def _signal(self, number: int) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._is_group:
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)

    def _watch(self, over: threading.Event) -> None:
        """End the program at its deadline or its budget."""
        options, started = self._options, time.monotonic()
        if options.budget_usd is None and options.deadline_seconds is None:
            return
        has_told = False
        while True:
            left = float("inf")
            if options.deadline_seconds is not None:
                left = max(0.0, started + options.deadline_seconds - time.monotonic())
            if over.wait(min(left, WATCH_SECONDS) if options.budget_usd is not None else left):
                return
            if left <= WATCH_SECONDS and options.deadline_seconds is not None:
                left = started + options.deadline_seconds - time.monotonic()
            if left <= 0:
                self._end(
                    "deadline", f"The deadline of {_duration(options.deadline_seconds or 0)} is over.", over
                )
                return
            if options.budget_usd is None:
                continue
            try:
                cost = self._server.figures().largest_cost_usd
            except Refused as error:
                if not has_told:
                    _tell(f"The budget is not watched for now: {error}")
                has_told = True
                continue
            if has_told:
                _tell("The budget is watched again.")
                has_told = False
            if cost >= options.budget_usd:
                self._end(
                    "budget", f"The budget of ${options.budget_usd:,.2f} is used up: ${cost:,.4f}.", over
                )
                return

    def _end(self, by: str, text: str, over: threading.Event) -> None:
        if over.is_set():
            return
        self._ended_by = by
        _tell(f"{text} The program is told to end.")
        self._signal(signal.SIGTERM)
        if not over.wait(END_SECONDS):
            _tell(f"It has not ended within {_duration(END_SECONDS)}, and is killed.")
            self._signal(signal.SIGKILL)

    # Its end

    def _how(self, status: int) -> str:
        if self._ended_by:
            return f"ended by its {self._ended_by}"
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"ended by the signal {signal.Signals(-status).name}"
        return f"ended with exit code {status}"

    def _summary(self, own: int) -> int:
        """Say what the server knows about the run, and return the exit code."""
        code = {"deadline": TIME_IS_UP, "budget": STOPPED}.get(self._ended_by, own)
        if not self._can_read:
            _tell("  There is no summary: the server could not be asked when the program started.")
            return code
        try:
            figures = self._server.settled_figures()
            loops, has_all_loops = self._server.loops()
        except Refused as error:
            _tell(f"  There is no summary: {error}")
            return code
        figures.is_whole = figures.is_whole and has_all_loops
        for line in _words(figures, loops):
            _tell(f"  {line}")
        is_loop = any(loop.was_last for loop in loops)
        obeyed = {stop.kind for stop in figures.stops if not stop.ran}
        if self._ended_by or not (obeyed or is_loop):
            return code
        return LOOP if "detection" in obeyed or is_loop else STOPPED


def _words(figures: Figures, loops: Sequence[Loop]) -> Iterator[str]:
    cost = (
        f"${figures.cost_usd:,.4f}"
        if figures.cost_usd or not figures.tokens
        else "cost unknown without prices"
    )
    yield (
        f"{_count(figures.sessions, 'session')}, {_count(figures.calls, 'call')} ({figures.blocked:,} blocked), "
        f"{_count(len(loops), 'loop')}, {figures.tokens:,} tokens, {cost}"
    )
    for loop in loops[:5]:
        yield f"loop{', until the end' if loop.was_last else ''}: {loop.title} {loop.link}"
    if len(loops) > 5:  # a judgement: what people read in a terminal
        yield f"and {len(loops) - 5} more"
    for stop in figures.stops:
        by = {"detection": f"detection ({stop.by})", "containment": f"a containment of {stop.by}"}.get(
            stop.kind, stop.by
        )
        has_ended = (
            f"but {_count(stop.ran, 'call')} ran afterwards" if stop.ran else "and no call ran afterwards"
        )
        yield f"a stop by {by}, {has_ended}: {stop.session} {stop.link}"
        yield f"  {stop.reason}"
    if figures.telemetry_sessions:
        sessions = _count(figures.telemetry_sessions, "session")
        yield f"telemetry alone reported {sessions}, ${figures.telemetry_cost_usd:,.4f}; these may be the same calls"
    if not figures.is_whole:
        yield "these are only the newest sessions of the run"
    if not figures.is_settled:
        yield "these figures may still change: not everything is evaluated"


@contextlib.contextmanager
def _folder_for_run() -> Iterator[Path]:
    """Make a private folder that is removed at the end of the block, or of this process if somebody kills it."""
    folder = Path(tempfile.mkdtemp(prefix="loopguard-run-"))
    program = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    undertaker = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, folder],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if undertaker.stdin is not None:
            undertaker.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            undertaker.wait(END_SECONDS)


def _names(provider: Provider, given: Sequence[str]) -> str:
    return " or ".join((*provider.variables, *(["its arguments"] if given else ())))


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 100 else f"{minutes / 60:.3g} h"


def _tell(text: str) -> None:
    """Tell the person; standard output is the program's."""
    with contextlib.suppress(OSError):
        print(f"loopguard: {text}", file=sys.stderr, flush=True)
