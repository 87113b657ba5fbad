"""Handle the proxies that the environment names. They serve downloads only: calls to this machine or inside a
deployment never use them, and a variable that a client library cannot parse must not stop it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

NAMES = {"http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy"}
ADDRESS = re.compile(
    r"(?:(?:https?|socks4a?|socks5h?)://)?(?:[^\s/@]*@)?(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::\d{1,5})?/?"
)


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that download nothing."""
    return {name: value for name, value in environment.items() if name.lower() not in NAMES}


def forget() -> None:
    """Remove proxies from this process's environment, and so from its children's."""
    for name in [name for name in os.environ if name.lower() in NAMES]:
        del os.environ[name]


def check(environment: Mapping[str, str]) -> None:
    """Check the proxies' addresses before a download.

    Raises:
        ValueError: one is not the address of a proxy; the message names the variable.
    """
    for name, value in environment.items():
        known = name.lower() in NAMES and not name.lower().startswith("no_")
        if known and value.strip() and not (ADDRESS.fullmatch(value.strip()) and _port_is_one(value)):
            raise ValueError(
                f"{name}={value!r} is not the address of a proxy; write http://host:port, or unset it"
            )


def _port_is_one(value: str) -> bool:
    try:
        return urlsplit(value if "://" in value else f"http://{value}").port != 0
    except ValueError:
        return False


def legible(environment: Mapping[str, str]) -> dict[str, str]:
    """Rewrite NO_PROXY so that every client can parse it: httpx fails on brackets, ports that are not
    numbers, IPv6 networks and names outside ASCII.
    """
    exceptions = {name: value for name, value in environment.items() if name.lower() == "no_proxy"}
    return {name: ",".join(filter(None, map(_entry, value.split(",")))) for name, value in exceptions.items()}


def _entry(given: str) -> str:
    entry = given.strip()
    if found := re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\S*)?", entry):
        return found[1]
    if entry.count(":") > 1:
        return "" if "/" in entry else entry
    entry = re.sub(r"(?<!/):(?!\d+$|//).*$", "", entry)
    try:
        return entry if entry.isascii() else entry.encode("idna").decode()
    except UnicodeError:
        return ""
