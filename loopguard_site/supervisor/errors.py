"""Errors of setting up and running, with messages that an operator can act on."""


class SupervisorError(RuntimeError):
    """Starting or running failed; the message says what to do and is printed without a traceback."""


class AlreadyRunning(SupervisorError):
    """Another supervisor has locked this data folder."""
