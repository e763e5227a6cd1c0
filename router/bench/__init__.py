"""`router bench`: an open-loop load driver for any OpenAI-compatible URL, and what it measured.

What is asked is in `groups` and `own`, when in `phases`, sending in `driver`, numbers in `results` and `compare`. The
one rule: what a server does not tell is unknown, never 0. `router demo` sends its traffic with the same driver.
"""
