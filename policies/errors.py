"""Errors of the core: a policy that can't be loaded, and facts that can't be true.

PolicyError            start-up: the text says what to do
  UnknownPolicy        no such name; close names are offered
  BadSettings          a setting the policy does not have, or a value it can't take
FleetError             a bug in a shell: an unknown replica, a fact told twice
"""


class PolicyError(Exception):
    """A policy can't be used as asked."""


class UnknownPolicy(PolicyError):  # noqa: N818 -- the name is the sentence a user reads
    """No installed policy has this name."""


class BadSettings(PolicyError):  # noqa: N818 -- the name is the sentence a user reads
    """The settings don't fit the policy's signature."""


class FleetError(Exception):
    """A fact that contradicts the book: an unknown replica, a request told done twice."""
