"""TLS on both sides: contexts for the client port and towards replicas, from the files an operator names.

The one rule: a certificate is always verified, against the system's authorities or the ones that were named; there is
no switch to turn that off. Errors name the setting and the file, never what is in it. Not here: HTTP.
"""

import ssl
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from router.errors import ConfigError
from router.sections import Listen, ReplicaAddress, ReplicaTls


class Towards(ssl.SSLContext):
    """A context towards one server whose certificate may show another name than its address."""

    shown_name: str | None = None

    def wrap_bio(self, incoming: Any, outgoing: Any, server_side: bool = False, *args: Any, **kwargs: Any) -> Any:
        return super().wrap_bio(incoming, outgoing, server_side, **_named(self.shown_name, args, kwargs))


class TowardsAll(ssl.SSLContext):
    """A context for a client of many servers: each host is met with the context of its own."""

    by_host: Mapping[str, ssl.SSLContext]

    def wrap_bio(self, incoming: Any, outgoing: Any, server_side: bool = False, *args: Any, **kwargs: Any) -> Any:
        told = _named(None, args, kwargs)
        context = self.by_host.get(told["server_hostname"] or "")
        meet = super().wrap_bio if context is None else context.wrap_bio
        return meet(incoming, outgoing, server_side, **told)


def _named(name: str | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    told = {**dict(zip(("server_hostname", "session"), args, strict=False)), **kwargs}
    return {"session": told.get("session"), "server_hostname": name or told.get("server_hostname")}


def towards(replica: ReplicaAddress, everybody: ReplicaTls) -> ssl.SSLContext | None:
    """The context for connections to one replica; None for plain HTTP. Raises `ConfigError`."""
    if urlsplit(replica.url).scheme != "https":
        return None
    told = f"replica {replica.name}: tls" if replica.tls is not None else "replica_tls"
    wanted = replica.tls if replica.tls is not None else everybody
    context = Towards(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if wanted.ca_file is None:
        context.load_default_certs()
    else:
        _trusting(context, wanted.ca_file, f"{told}.ca_file")
    if wanted.cert_file is not None:
        _showing(context, wanted.cert_file, wanted.key_file, told)
    context.shown_name = wanted.name
    return context


def towards_all(contexts: Mapping[str, ssl.SSLContext]) -> ssl.SSLContext:
    """One context for a client that asks all replicas; `contexts` are by host and may change."""
    context = TowardsAll(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_default_certs()
    context.by_host = contexts
    return context


def facing_clients(listen: Listen) -> ssl.SSLContext | None:
    """The context of the client port; None for plain HTTP. Raises `ConfigError`."""
    if listen.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _showing(context, listen.cert_file, listen.key_file, "listen")
    if listen.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trusting(context, listen.client_ca_file, "listen.client_ca_file")
    return context


def host_of(url: str) -> str:
    """The host of a URL as a client names it to TLS."""
    return urlsplit(url).hostname or ""


def checked(listen: Listen, everybody: ReplicaTls, replicas: Iterable[ReplicaAddress]) -> None:
    """Raise `ConfigError` for the first file that can't be used."""
    facing_clients(listen)
    for replica in replicas:
        towards(replica, everybody)


def _trusting(context: ssl.SSLContext, file: str, told: str) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{told} {file!r} can't be used: {_said(error)}; name a PEM file of authorities") from None


def _showing(context: ssl.SSLContext, cert: str, key: str | None, told: str) -> None:
    try:
        # An empty password: without one, OpenSSL would ask at the terminal for that of an encrypted key.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        remedy = "name the certificate with its chain and its unencrypted key, both PEM"
        raise ConfigError(f"{told}.cert_file {cert!r} can't be used: {_said(error)}; {remedy}") from None


def _said(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or type(error).__name__
