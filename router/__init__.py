"""The live router: sockets in, a policy's choice, sockets out. Nothing here is imported by `policies` or `sim`."""

__version__ = "0.1.0"
