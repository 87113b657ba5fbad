"""Proxies that the environment names. They are for downloads: a call to this machine, or inside a deployment,
never goes through one, and clients that cannot read a variable must not stop for it.
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
    """The environment of a process that downloads nothing."""
    return {name: value for name, value in environment.items() if name.lower() not in NAMES}


def forget() -> None:
    """Take them out of this process's environment, and so out of its children's."""
    for name in [name for name in os.environ if name.lower() in NAMES]:
        del os.environ[name]


def check(environment: Mapping[str, str]) -> None:
    """Look at the addresses before something is downloaded.

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
    """NO_PROXY in a form that every client reads: httpx stops at brackets, at ports that are not numbers, at
    IPv6 networks and at names outside ASCII.
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
