"""What can go wrong while setting up or running, said so that an operator can act on it."""


class SupervisorError(RuntimeError):
    """Starting or running failed; the message says what to do and is shown without a traceback."""


class AlreadyRunning(SupervisorError):
    """Another supervisor holds this data folder."""
