"""State shared by the sessions of one family: a session, the sessions it started, and so on.

A service loads the family of a session before it folds, and stores it afterwards; the detectors `family`,
`family_budget`, `handoff` and `spawns` read and change it. Everything in it is bounded, so that it costs the same
however many calls the family makes.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field, fields
from typing import Any, Final

import orjson

from detection.engine.bounded import MAX_RESULTS, RecentHashes, drop_oldest, hash_of

# Counts the forms of what is stored; rows of other versions are not read. As in `snapshot`, fields may be added at the
# end without another version.
VERSION = 2
MAX_MEMBERS = 200
"""Further sessions of the family are judged individually."""
# What a family remembers, in some 30 KB of one row (docs/decisions/0018-families.md): different calls,
MAX_CALLS = 128
# tools with a series of errors,
MAX_TOOLS = 32
# hand-offs, which hold ten laps of six agents,
MAX_HANDOFFS = 64
# different prompts of sub-agents,
MAX_PROMPTS = 256
# and when the latest ones were started: the highest limit that `spawns_max_per_minute` may have.
MAX_RECENT_SPAWNS = 200
_MINUTE = 60.0  # seconds
# Hexadecimal digits that are kept of the digest of a call: 64 bits, so that no two calls of a family look the same.
_KEY_CHARACTERS = 16
# The same of a result: 32 bits, as in the results that a run remembers.
_RESULT_CHARACTERS = 8


@dataclass(slots=True)
class Repeats:
    """An identical call within the family.

    Attributes
    ----------
    count : int
        Calls beyond the first one of each session.
    result : str
        Fingerprint of the latest result, empty before the first.
    at : float
        When it was made last, in Unix seconds.
    members : int
        The sessions that made it, one bit each.
    """

    count: int = 0
    result: str = ""
    at: float = 0.0
    members: int = 0

    @property
    def sessions(self) -> int:
        """How many sessions made it."""
        return self.members.bit_count()


@dataclass(slots=True)
class Stretch:
    """Calls in a row by one agent of the family, or of one session.

    Attributes
    ----------
    agent, session : str
        Name of the agent, bounded, and hash of the name of the session.
    seq : int
        Its first call.
    results : int
        Results received during the stretch.
    is_new : bool
        Whether one of them was new.
    """

    agent: str
    session: str
    seq: int
    results: int = 0
    is_new: bool = False


@dataclass(slots=True)
class AgentTree:
    """The sub-agents of a family.

    Attributes
    ----------
    total : int
        How many were started.
    children : dict of str to list of int
        By hash of the session that started them: those that its calls started, and the sessions that name it.
    prompts : dict of str to int
        How many of them got a prompt, by its hash.
    started_at : list of float
        When the latest ones were started, in Unix seconds.
    has_begun : bool
        Whether the session at the top has started one.
    """

    total: int = 0
    children: dict[str, list[int]] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    started_at: list[float] = field(default_factory=list)
    has_begun: bool = False

    def add_spawns(self, session: str, prompts: list[str], at: float) -> int:
        """Count the sub-agents that a call of a session starts; return how often the most frequent prompt was given."""
        self._started(session, 0, len(prompts), at)
        most = 0
        for prompt in prompts:
            key = _label(" ".join(prompt.lower().split()))
            count = self.prompts.pop(key, 0) + 1
            self.prompts[key], most = count, max(most, count)
        drop_oldest(self.prompts, MAX_PROMPTS)
        return most

    def add_session(self, parent: str, at: float) -> bool:
        """Count a session that names this parent; return whether no call was seen that started it."""
        started, sessions = self.children.get(parent, (0, 0))
        is_unseen = sessions >= started
        self._started(parent, 1, 1, at, is_unseen=is_unseen)
        return is_unseen

    def _started(self, parent: str, which: int, count: int, at: float, *, is_unseen: bool = True) -> None:
        counts = self.children.pop(parent, [0, 0])
        counts[which] += count
        self.children[parent] = counts
        drop_oldest(self.children, MAX_MEMBERS)
        if is_unseen:
            self.total += count
            self.started_at = [*self.started_at, *[at] * count][-MAX_RECENT_SPAWNS:]

    def children_of(self, session: str) -> int:
        """Return how many sub-agents a session has started."""
        return max(self.children.get(session, (0,)))

    def within_a_minute(self, at: float) -> int:
        """Return how many sub-agents were started within the minute before a time."""
        return sum(1 for one in self.started_at if at - one < _MINUTE)

    def add(self, other: AgentTree) -> None:
        """Take over what was counted below another session at the top."""
        self.total += other.total
        self.children = other.children | self.children
        for prompt, count in other.prompts.items():
            self.prompts[prompt] = self.prompts.get(prompt, 0) + count
        self.started_at = sorted([*self.started_at, *other.started_at])[-MAX_RECENT_SPAWNS:]

    def begin_anew(self) -> None:
        """Forget all but the total, because the user spoke to the session at the top."""
        self.children.clear()
        self.prompts.clear()
        self.started_at.clear()


@dataclass(slots=True)
class FamilyState:
    """One family, and the session of it that is folded.

    Attributes
    ----------
    name : str
        Name of the session at the top.
    session, parent : str
        Hashes of the names of the session in hand and of the one that started it; `parent` is empty at the top. Names
        of sessions are not stored, so that nothing of them is left when they are erased.
    usage : dict
        Calls, tokens and cost in US dollars by member.
    repeats : dict of str to Repeats
        By call key.
    errors : dict of str to Repeats
        By tool: its identical errors in a row; `count` includes the first ones.
    handoffs : list of Stretch
        Oldest first.
    seen : RecentHashes
        Fingerprints of results.
    noticed : dict
        Limits that operators got a notice about, by unit.
    tree : AgentTree
        The sub-agents.
    level : int
        Generations between the session in hand and the one at the top, which has 0.
    has_joined : bool
        Whether the session in hand has just become a member.
    """

    name: str = ""
    session: str = ""
    parent: str = ""
    usage: dict[str, list[Any]] = field(default_factory=dict)
    repeats: dict[str, Repeats] = field(default_factory=dict)
    errors: dict[str, Repeats] = field(default_factory=dict)
    handoffs: list[Stretch] = field(default_factory=list)
    seen: RecentHashes = field(default_factory=RecentHashes)
    noticed: dict[str, float] = field(default_factory=dict)
    tree: AgentTree = field(default_factory=AgentTree)
    level: int = 0
    has_joined: bool = False
    _member: int = -1

    def enter(
        self, session: str, parent: str, member: str, used: tuple[int, int, float], level: int = 0
    ) -> bool:
        """Start to process a session, with its lifetime usage; return False if the family is full.

        Totals are replaced, not added up, so that nothing counts twice and usage from before the session joined the
        family counts.
        """
        if member not in self.usage and len(self.usage) >= MAX_MEMBERS:
            return False
        self.session, self.parent, self.level = _label(session), _label(parent), level
        self.has_joined = member not in self.usage
        self.usage[member] = [*used]
        self._member = 1 << [*self.usage].index(member)
        return True

    @property
    def totals(self) -> tuple[int, int, float]:
        """Calls, tokens and cost of all sessions."""
        rows = [*self.usage.values()]
        return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)

    def count_call(self, key: str, at: float, window_seconds: float) -> Repeats:
        """Count a call, and return it; the first one of each session is free."""
        known = self.repeats.pop(key[:_KEY_CHARACTERS], None)
        if known is None or (window_seconds and at - known.at > window_seconds):
            known = Repeats()
        self._count(known, at, is_free=not known.members & self._member)
        self.repeats[key[:_KEY_CHARACTERS]] = known
        drop_oldest(self.repeats, MAX_CALLS)
        return known

    def note_result(self, key: str, result: str, *, is_error: bool) -> None:
        """Note the result of a call. A result that differs from the previous one is progress, unless it is an error."""
        known = self.repeats.get(key[:_KEY_CHARACTERS])
        if known is None:
            return
        if known.result and known.result != result[:_RESULT_CHARACTERS] and not is_error:
            known.count, known.members = 0, self._member
        known.result = result[:_RESULT_CHARACTERS]

    def count_error(self, tool: str, error: str, at: float, window_seconds: float) -> Repeats:
        """Count an error of a tool, and return the identical ones in a row."""
        known = self.errors.pop(tool, None)
        error = error[:_RESULT_CHARACTERS]
        if known is None or known.result != error or (window_seconds and at - known.at > window_seconds):
            known = Repeats(result=error)
        self._count(known, at, is_free=False)
        self.errors[tool] = known
        drop_oldest(self.errors, MAX_TOOLS)
        return known

    def _count(self, known: Repeats, at: float, *, is_free: bool) -> None:
        known.count += not is_free
        known.members |= self._member
        known.at = at

    def is_new(self, result: str) -> bool:
        """Return whether no session of the family had this result, and remember it."""
        return self.seen.add_new(bytes.fromhex(result[:_RESULT_CHARACTERS]), MAX_RESULTS)

    def keep_only(self, key: str) -> None:
        """Forget the calls before a successful change, except the change itself."""
        kept = self.repeats.get(key[:_KEY_CHARACTERS])
        self.repeats = {key[:_KEY_CHARACTERS]: kept} if kept else {}
        self.errors.clear()

    def forget(self, keys: tuple[str, ...]) -> None:
        """Count these calls from zero again."""
        for key in keys:
            self.repeats.pop(key[:_KEY_CHARACTERS], None)
        if keys:
            self.errors.clear()

    def begin_anew(self) -> None:
        """Forget all evidence, because the user spoke to the session at the top."""
        self.repeats.clear()
        self.errors.clear()
        self.handoffs.clear()

    def merge(self, other: FamilyState) -> None:
        """Take over the counts from while the top session of `other` had no known parent."""
        for member, used in other.usage.items():
            if member in self.usage or len(self.usage) < MAX_MEMBERS:
                self.usage.setdefault(member, used)
        self.tree.add(other.tree)
        # Members are bits by position, which differ; the evidence begins anew.
        self.begin_anew()

    def dump(self) -> bytes:
        """Return the family as bytes, some 30 KB at most."""
        return orjson.dumps(
            {
                "v": VERSION,
                "u": self.usage,
                "r": {key: _packed(one) for key, one in self.repeats.items()},
                "e": {tool: _packed(one) for tool, one in self.errors.items()},
                "h": [
                    [one.agent, one.session, one.seq, one.results, one.is_new]
                    for one in self.handoffs[-MAX_HANDOFFS:]
                ],
                "s": b64encode(self.seen.packed).decode(),
                "n": self.noticed,
                "t": [getattr(self.tree, name) for name in AgentTree.__slots__],
            }
        )


_STRETCH_LENGTH: Final = len(fields(Stretch))


def load(name: str, data: bytes) -> FamilyState:
    """Return a family from bytes; without bytes, or with those of another version, it begins anew."""
    if not data:
        return FamilyState(name)
    body = orjson.loads(data)
    if body.get("v") != VERSION:
        return FamilyState(name)
    return FamilyState(
        name,
        usage=body["u"],
        repeats={key: _unpacked(row) for key, row in body["r"].items()},
        errors={tool: _unpacked(row) for tool, row in body["e"].items()},
        handoffs=[Stretch(*row[:_STRETCH_LENGTH]) for row in body["h"]],
        seen=RecentHashes(b64decode(body["s"])),
        noticed=body["n"],
        tree=AgentTree(*body["t"][: len(AgentTree.__slots__)]),
    )


def _label(name: str) -> str:
    return f"{hash_of(name):08x}" if name else ""


def _packed(one: Repeats) -> list[Any]:
    # A number of more than 64 bits is no number for every JSON parser.
    return [one.count, one.result, one.at, f"{one.members:x}"]


def _unpacked(row: list[Any]) -> Repeats:
    return Repeats(row[0], row[1], row[2], int(row[3], 16))
