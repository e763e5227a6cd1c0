"""`python -m router`: the same as the `router` command."""

import sys

from router.cli import main

if __name__ == "__main__":
    sys.exit(main())
