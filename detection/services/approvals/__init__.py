"""Approvals: held calls that a person or the judge decides."""
