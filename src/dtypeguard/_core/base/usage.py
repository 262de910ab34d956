"""What a command of `python -m dtypeguard` raises."""

INTERRUPTED = 130  # the exit status after Ctrl-C
UNREAD = 141  # that of a command whose output nobody reads any more, as where SIGPIPE ends it


class Usage(Exception):
    """What was asked for cannot be done."""


class Failed(Exception):
    """What was asked for was done, and did not pass: the reason, which is printed last, and exit status 1."""


class Raised(Exception):
    """The user's own code raised its cause, which is shown as Python shows it: the reason; exit status 1."""
