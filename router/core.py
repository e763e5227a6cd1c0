"""Whether what runs for every request was compiled when this package was installed. It does the same either way."""

import policies.fleet

CORE = "interpreted" if str(policies.fleet.__file__).endswith(".py") else "compiled"
