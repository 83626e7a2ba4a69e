"""The finding about identical calls, for all rules of `repeat`."""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding, FindingDetail
from detection.engine.detectors.base import LIKELY, evidence
from detection.engine.identity import digest_of_calls
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings


def finding_about(
    run: RunState,
    record: Record,
    policy: PolicySettings,
    count: int,
    limit: int,
    results: str,
    details: FindingDetail,
    **more: Any,
) -> Finding:
    """Return a finding about the calls of the run that are identical to this one."""
    same = [
        other
        for other in run.records
        if other.key == record.key and (not other.is_obsolete or other is record)
    ]
    more.setdefault("first_seq", same[0].seq)
    return Finding(
        kind="repeat",
        count=count,
        limit=limit,
        confidence=1.0 if results in ("equal", "errors") or not policy.values["result_aware"] else LIKELY,
        calls_digest=digest_of_calls("repeat", (record.key,)),
        call_keys=(record.key,),
        seqs=evidence(same),
        results=results,
        detail=details,
        **more,
    )


def known_results(run: RunState, record: Record) -> str:
    """Say whether the known results of identical calls differ."""
    known = {other.result for other in run.records if other.key == record.key and other.result}
    return "unknown" if not known else "equal" if len(known) == 1 else "changing"
