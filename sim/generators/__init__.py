"""The traffic of the presets: who comes when, with how long a prompt, and what of it others have said before."""
