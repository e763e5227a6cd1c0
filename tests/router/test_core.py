"""What the router says of how it was installed."""

import importlib.util
import subprocess
import sys

from router.core import CORE


def test_the_version_says_what_python_really_loads():
    origin = importlib.util.find_spec("policies.fleet").origin
    wanted = "interpreted" if origin.endswith(".py") else "compiled"
    told = subprocess.check_output([sys.executable, "-m", "router", "--version"], text=True, timeout=60)
    assert told == f"prefix-router 0.1.0, {wanted} core\n"
    assert wanted == CORE
