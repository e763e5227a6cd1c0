"""`/admin/replicas` on the admin port: which replicas there are, and an operator's word about them.

    GET   the replicas
    POST  {"add": "URL" | {"url": …, "name": …, "weight": …}}, {"drain": "NAME"} or {"remove": "NAME"}

The one rule: whoever may change replicas may read every prompt, so a change needs the admin key, or, where none is
set, an admin port that only this machine reaches. Not here: what joining and leaving mean (`membership`).
"""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from router.addresses import DNS, parsed
from router.config import Config
from router.errors import BadRequest, ConfigError, NotAllowed, RequestError
from router.membership import Membership
from router.sections import ReplicaAddress
from router.side_connection import error_response
from router.web import json_response

PATH = "/admin/replicas"
_WORDS = ("add", "drain", "remove")
_ADDRESSES = TypeAdapter(tuple[ReplicaAddress, ...])


def member_routes(membership: Membership, config: Config) -> list[web.RouteDef]:
    """The routes. Raises `ConfigError` for an admin key that can't be read."""
    key = admin_key(config.admin.key_file)
    local = loopback(config.admin.host)

    async def listed(_: web.Request) -> web.Response:
        return json_response(shown(membership))

    async def changed(http: web.Request) -> web.Response:
        try:
            allowed(http.headers.get("Authorization", ""), http.content_type, key, local=local)
            word, about = change(await http.read())
            doing: dict[str, Callable[[Any], Awaitable[object]]] = {
                "add": membership.added,
                "drain": membership.drained,
                "remove": membership.removed,
            }
            await doing[word](about)
        except RequestError as error:
            return error_response(error)
        return json_response(shown(membership))

    return [web.get(PATH, listed), web.post(PATH, changed)]


def shown(membership: Membership) -> dict[str, Any]:
    return {"replicas": [asdict(member) for member in membership.members()]}


def admin_key(file: str | None) -> str | None:
    """The key an operator must bring; None when none is set."""
    if file is None:
        return None
    try:
        key = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"admin.key_file {file!r} can't be read: {said}") from None
    if not key:
        raise ConfigError(f"admin.key_file {file!r} is empty")
    return key


def loopback(host: str) -> bool:
    """Whether only this machine reaches a port on this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def allowed(authorization: str, content_type: str, key: str | None, *, local: bool) -> None:
    """Raises `NotAllowed`. The type is asked for since a page in an operator's browser can't send it to this port."""
    if key is not None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
            raise NotAllowed("changes of replicas need `Authorization: Bearer` with the key in admin.key_file")
    elif not local:
        raise NotAllowed("the admin port can be reached from other machines; set admin.key_file to change replicas")
    if content_type != "application/json":
        raise BadRequest("send the change as Content-Type: application/json")


def change(body: bytes) -> tuple[str, ReplicaAddress | str]:
    """What to do, and with which replica. Raises `BadRequest`."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = None
    words = [word for word in _WORDS if isinstance(told, dict) and word in told]
    if len(words) != 1 or len(told) != 1:
        raise BadRequest('send one of {"add": URL or table}, {"drain": NAME}, {"remove": NAME}')
    word, about = words[0], told[words[0]]
    if word == "add":
        return word, address(about)
    if not isinstance(about, str):
        raise BadRequest(f"{word} takes the name of a replica")
    return word, about


def address(about: object) -> ReplicaAddress:
    """The replica to add, named after its address if it was given no name. Raises `BadRequest`."""
    try:
        table: dict[str, Any] = parsed([about])[0]  # type: ignore[index]  # it gives back a list for a list
        named = {**table, "name": table["name"] if _has_name(about) else _plain(table["url"])}
        [found] = _ADDRESSES.validate_python([named])
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise BadRequest(f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}") from None
    except ValueError as error:
        raise BadRequest(str(error)) from None
    if found.url.startswith(DNS):
        raise BadRequest("a dns: entry belongs into the configuration or replicas_file, where it is looked up again")
    if found.tls is not None:
        raise BadRequest("tls names files of this machine, so it belongs into the configuration or replicas_file")
    if _link_local(urlsplit(found.url).hostname or ""):
        raise BadRequest("a link-local address is no replica: such addresses serve machines' own metadata")
    return found


def _has_name(about: object) -> bool:
    if isinstance(about, dict):
        return bool(about.get("name"))
    return isinstance(about, str) and "=" in about.partition("/")[0]


def _plain(url: str) -> str:
    return url.partition("://")[2].replace("[", "").replace("]", "")


def _link_local(host: str) -> bool:
    try:
        ip = ip_address(host)
    except ValueError:
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_link_local
