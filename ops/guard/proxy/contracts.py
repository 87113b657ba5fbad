"""Contracts of models: those of the own server, read once in each of its lives, and those of other guards."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import orjson

from conch.http_client import HttpClient, Lost

from ..checks.contract import Contract

MOST = 256
# In a guard's request to another; its value is LOST where a server was lost with it.
HANDED, LOST = "x-conch-handed", "lost"


class Contracts:
    """Contracts by model name."""

    def __init__(self) -> None:
        self._last: dict[str, Contract] = {}
        self._names: set[str] = set()
        self._found: WeakKeyDictionary[HttpClient, dict[str, Contract]] = WeakKeyDictionary()

    async def get(self, http: HttpClient, model: str) -> Contract | None:
        """Return the contract of the own server's model; None if there is no such model.

        Raises:
            Lost: the server cannot be asked.
        """
        found = self._found.setdefault(http, {})
        if model not in found:
            contract = await self._asked(http, model, {})
            if contract is None or len(found) >= MOST:
                return None
            found[model] = self._last[model] = contract
        return found[model]

    async def elsewhere(self, http: HttpClient, model: str) -> Contract | None:
        """Return the contract at another guard, which may be another one the next time.

        Raises:
            Lost: it cannot be asked, or has no server.
        """
        return await self._asked(http, model, {HANDED: "1"})

    def last(self, model: str) -> Contract | None:
        """Return what the own server reported last, even if it is gone; None if it was never asked."""
        return self._last.get(model)

    def known(self, model: str) -> bool:
        """Tell whether any server has had this model."""
        return model in self._names

    async def _asked(self, http: HttpClient, model: str, headers: dict[str, str]) -> Contract | None:
        answer = await http.request("GET", f"/v2/models/{model}/config", headers)
        text = await answer.body()
        if answer.status == 503:
            raise Lost("this guard's instance does not answer")
        if answer.status != 200:
            return None
        if len(self._names) < MOST:
            self._names.add(model)
        return Contract.parse(orjson.loads(text))
