"""How long hypothesis looks: `--hypothesis-profile=long` is for `make fuzz`."""

from hypothesis import settings

settings.register_profile("long", max_examples=5000, deadline=None)
