"""Says when another `policies` or `sim` package stands before ours.

The packages of this distribution have everyday names, so a folder of the same name on the import path (with
`python -m router` or PYTHONPATH) can hide them. The one rule: this runs before anything imports `policies`.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_BESIDE: Final = ("policies", "sim")
DISTRIBUTION: Final = "prefix-router"
_HERE: Final = Path(__file__).resolve().parent


def conflicts(here: Path = _HERE) -> list[str]:
    """One line for each of our packages that is missing or is not the one beside `router`; costs under 1 ms."""
    found = []
    for name in _BESIDE:
        ours = here.parent / name
        spec = find_spec(name)
        places = [Path(place).resolve() for place in spec.submodule_search_locations or ()] if spec else []
        if not places:
            found.append(f"{name}: not found beside {here}; reinstall {DISTRIBUTION}")
        elif places[0] != ours:
            found.append(
                f"{name}: {places[0]} stands before {ours}; run `router` from another folder or rename that one"
            )
    return found


def other_owners() -> list[str]:
    """Other distributions that install a package of one of our names (slow: reads all installed metadata)."""
    from importlib.metadata import packages_distributions

    owners = packages_distributions()
    return [
        f"{name}: the distribution {owner} installs a package of that name too; give {DISTRIBUTION} its own environment"
        for name in ("router", *_BESIDE)
        for owner in sorted(set(owners.get(name, ())) - {DISTRIBUTION})
    ]
