"""The brain both shells share: facts go into a `Fleet`, a view comes out, a `Policy` turns a view into a choice.

    types ─ blocks ─ index ─ fleet ─ {round_robin, least_loaded, user_hash, prefix_aware} ─ plugins ─ conformance

Pure: no I/O, no clock, no dice of its own. Whoever calls passes the time; whoever wants chance passes a seed.
"""

from policies.types import Choice, Policy, Replica, Request

__all__ = ["Choice", "Policy", "Replica", "Request"]
