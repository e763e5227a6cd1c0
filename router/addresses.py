"""How a replica is written down: `URL`, `name=URL`, `host:port` or `dns:host:port`, alone or in a list with commas.

The one rule: a replica's identity is its normalised URL with the port, so several on one host are several replicas.
Errors never repeat what stands before an `@`: that is a password. Not here: whether the replica answers.
"""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_PORTS = {"http": 80, "https": 443}

DNS = "dns:"
"""Stands before a replica that is every address behind a name: `dns:vllm.internal:8000`."""


def parsed(value: object) -> object:
    """Tables with unique names and unique URLs, from a text, a list of texts, or a list of tables."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        return value
    parts = [part for entry in value for part in (entry.split(",") if isinstance(entry, str) else [entry])]
    tables = [_table(part) for part in parts if not (isinstance(part, str) and not part.strip())]
    _named(tables)
    return tables


def normalised(url: str) -> str:
    """`scheme://host:port`, lower case, the port always written. Raises `ValueError` with the remedy."""
    if url.startswith(DNS):
        return DNS + normalised(url.removeprefix(DNS))
    shown = _without_password(url)
    if any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise ValueError(f"replica {shown!r} has a space or control character in it")
    split = _split(url, shown)
    if split.scheme not in _PORTS:
        raise ValueError(f"replica {shown!r}: the scheme is {split.scheme!r}; write http:// or https://")
    if "@" in split.netloc:
        raise ValueError(f"replica {shown!r} has a user or password in it; name the key with replica_key_env instead")
    if split.path not in ("", "/") or split.query or split.fragment or "?" in url or "#" in url:
        remedy = f"write {split.scheme}://{split.netloc} and let clients send the path"
        raise ValueError(f"replica {shown!r} has a path, query or fragment; {remedy}")
    if split.netloc.count(":") > 1 and "[" not in split.netloc:
        raise ValueError(f"replica {shown!r}: an IPv6 address goes in brackets: http://[::1]:8000")
    host, port = _host(split.hostname or "", shown), _port(split, shown)
    return f"{split.scheme}://{host}:{port}"


def _split(url: str, shown: str) -> Any:
    text = url if "://" in url else f"http://{url}"
    try:
        split = urlsplit(text)
    except ValueError:
        raise ValueError(f"replica {shown!r} is no URL; an IPv6 address goes in brackets: http://[::1]:8000") from None
    if "://" not in url and not re.search(r":\d+/?$", split.netloc):
        raise ValueError(f"replica {shown!r} has no port; write {shown}:8000 or a URL")
    return split


def _host(host: str, shown: str) -> str:
    if ":" in host:
        try:
            return f"[{ip_address(host.partition('%')[0]).compressed}{''.join(host.partition('%')[1:])}]"
        except ValueError:
            raise ValueError(f"replica {shown!r}: {host!r} is no IPv6 address") from None
    if not _HOST.fullmatch(host):
        raise ValueError(f"replica {shown!r} has no usable host; write host:port or http://host:port")
    return host.lower()


def _port(split: Any, shown: str) -> int:
    try:
        port = split.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"replica {shown!r} has no usable port; ports go from 1 to 65535")
    return port or _PORTS[split.scheme]


def _table(part: object) -> dict[str, Any]:
    if isinstance(part, str):
        name, equals, url = part.strip().partition("=")
        if not equals or "/" in name:
            name, url = "", part.strip()
        return {"name": name.strip(), "url": normalised(url.strip())}
    if hasattr(part, "model_dump"):
        part = part.model_dump()
    if not isinstance(part, Mapping) or not isinstance(part.get("url"), str):
        raise ValueError("a replica is a text such as r1=http://10.0.0.1:8000, or a table with a url")
    return {**part, "name": part.get("name") or "", "url": normalised(part["url"].strip())}


def _named(tables: Iterable[dict[str, Any]]) -> None:
    """Check the names that were given, and give r1, r2, … by position to the rest."""
    tables = list(tables)
    urls: dict[str, int] = {}
    for position, table in enumerate(tables, 1):
        if table["url"] in urls:
            raise ValueError(f"replica {table['url']} is listed twice (entries {urls[table['url']]} and {position})")
        urls[table["url"]] = position
    names: dict[str, str] = {}
    for table in tables:
        name = table["name"]
        if not name:
            continue
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"replica name {str(name)[:80]!r}: use letters, digits, dot, dash, underscore; 63 at most")
        if name in names:
            raise ValueError(f"two replicas are named {name!r} ({names[name]} and {table['url']}); rename one")
        names[name] = table["url"]
    for position, table in enumerate(tables, 1):
        if not table["name"]:
            name = f"r{position}"
            table["name"] = table["url"].partition("://")[2].strip("[]") if name in names else name
            names[table["name"]] = table["url"]


def _without_password(url: str) -> str:
    """The text for an error message, less anything that may be a secret."""
    scheme, sep, rest = url.rpartition("://")
    hidden = "…@" if "@" in rest else ""
    rest = re.split(r"[?#]", rest.rpartition("@")[2])[0]
    rest = re.sub(r":(?!\d*(/|$))[^:\]/]*$", ":…", rest)  # what stands where a port should may be half a password
    return f"{scheme}{sep}{hidden}{rest}"[:200]
