"""What happens to the installation, and when: a function of the seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

STRIKES = 3
SECOND_FAULT_SHARE = 0.4
KILLED = (
    "web",
    "web worker",
    "live",
    "worker",
    "beat",
    "postgres",
    "postgres backend",
    "valkey",
    "supervisor",
)
FROZEN = ("web worker", "live", "worker", "beat", "postgres", "valkey", "supervisor")
READ_ONLY = ("postgres",)
DISK = ("nearly full", "full")
CLOCK = ("ahead", "behind")
LONGEST_JUMP_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes
    ----------
    action
        ``kill``, ``freeze``, ``read-only``, ``disk`` or ``clock``.
    target
        What is killed, frozen or takes no writes, how full the disk is, or where the clock goes.
    after_seconds
        From the beginning of the strike.
    seconds
        How long it lasts; 0 for a kill.
    jump_seconds
        Of the clock.
    """

    action: str
    target: str
    after_seconds: float
    seconds: float = 0.0
    jump_seconds: int = 0

    @property
    def kind(self) -> str:
        """The name that reports group by."""
        return f"{self.action} {self.target}"


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault, or two that overlap or follow closely. The next strike comes once the installation has recovered."""

    pause_seconds: float
    faults: tuple[Fault, ...]


def kinds(*, with_disk: bool, with_clock: bool) -> list[tuple[str, str]]:
    """Return every fault that can be done here, as action and target."""
    found = [("kill", name) for name in KILLED] + [("freeze", name) for name in FROZEN]
    found += [("read-only", name) for name in READ_ONLY]
    found += [("disk", name) for name in DISK] if with_disk else []
    return found + ([("clock", name) for name in CLOCK] if with_clock else [])


def schedule(seed: int, *, with_disk: bool, with_clock: bool) -> list[Strike]:
    """Return the strikes of a seed. The kinds of a seed differ, and over the seeds each kind is as likely."""
    rng = random.Random(f"faults-{seed}")
    deck = kinds(with_disk=with_disk, with_clock=with_clock)
    rng.shuffle(deck)
    strikes = []
    for _ in range(STRIKES):
        pause = rng.uniform(0.3, 1.5)
        faults = [_fault(rng, deck.pop(), 0.0)]
        if rng.random() < SECOND_FAULT_SHARE:
            faults.append(_fault(rng, deck.pop(), rng.uniform(0.0, 2.0)))
        strikes.append(Strike(pause, tuple(faults)))
    return strikes


def _fault(rng: random.Random, kind: tuple[str, str], after: float) -> Fault:
    action, target = kind
    seconds = 0.0 if action == "kill" else rng.uniform(1.0, 4.0)
    jump = (
        rng.randint(10, LONGEST_JUMP_SECONDS) * (-1 if target == "behind" else 1) if action == "clock" else 0
    )
    return Fault(action, target, round(after, 2), round(seconds, 2), jump)
