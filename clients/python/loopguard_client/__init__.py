"""Client of a LoopGuard server: guards the tool calls of an agent.

Adapters for agent frameworks are modules of this package; each needs its framework only when it is imported.
"""

from loopguard_client.calls import Call, CallBlocked, Decision, HardStop, LoopGuardError, RunStopped, Verdict
from loopguard_client.guard import Guard
from loopguard_client.session import GuardedCall, Session
from loopguard_client.status import Status

__version__ = "0.1.0"

__all__ = [
    "Call",
    "CallBlocked",
    "Decision",
    "Guard",
    "GuardedCall",
    "HardStop",
    "LoopGuardError",
    "RunStopped",
    "Session",
    "Status",
    "Verdict",
]
