"""What the values of the core are made of: msgspec's structs, which cost a tenth of frozen dataclasses.

The one rule: a struct's options are given here and inherited, since a compiled module can't give them (mypyc 2.4 drops
the keywords of a class statement); so this module itself stays interpreted. `frozen=True` is said again by every class
only because type checkers want to hear it.
"""

from msgspec import Struct


class Value(Struct, frozen=True, gc=False):
    """Never changes, and is nothing for the garbage collector: it holds nothing that could hold it."""


class Fixed(Struct, frozen=True):
    """Never changes; may hold what holds it."""


class Loose(Struct, gc=False):
    """May change, and is nothing for the garbage collector."""
