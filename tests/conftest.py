"""How hypothesis looks: without a deadline, for no test is timed; `--hypothesis-profile=long` is for `make fuzz`."""

from hypothesis import settings

settings.register_profile("usual", deadline=None)
settings.register_profile("long", max_examples=5000, deadline=None)
settings.load_profile("usual")
