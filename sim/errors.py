"""What can go wrong in the simulator. Every message says what happened, to which thing, and what to do."""


class SimError(Exception):
    """Root of the simulator's own errors."""


class OptionError(SimError):
    """What was asked can't be simulated as asked."""


class CacheFull(SimError):  # noqa: N818 -- the name says what happened
    """More blocks were asked of a pool than are free."""


class JobRefused(SimError):  # noqa: N818 -- the name says what happened
    """A job that the replica can never run, or knows already."""


class EngineDied(SimError):  # noqa: N818 -- the name says what happened
    """A live engine met a fault and gives nothing any more."""
