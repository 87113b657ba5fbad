"""The contracts of models: the own server's, asked for once in each of its lives, and other guards'."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import orjson

from .contract import Contract
from .http_client import HttpClient, Lost

MOST = 256
HANDED = "x-conch-handed"


class Contracts:
    """Contracts by model name."""

    def __init__(self) -> None:
        self._last: dict[str, Contract] = {}
        self._names: set[str] = set()
        self._found: WeakKeyDictionary[HttpClient, dict[str, Contract]] = WeakKeyDictionary()

    async def get(self, http: HttpClient, model: str) -> Contract | None:
        """The contract of a model of the own server; None if it has no such model.

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
        """The same of another guard, whose server may be another one the next time.

        Raises:
            Lost: it cannot be asked, or has no server.
        """
        return await self._asked(http, model, {HANDED: "1"})

    def last(self, model: str) -> Contract | None:
        """What the own server reported last, which may be gone; None if it was never asked."""
        return self._last.get(model)

    def known(self, model: str) -> bool:
        """Whether some server has had this model."""
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
