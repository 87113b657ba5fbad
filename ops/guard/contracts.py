"""The contracts of a server's models, asked for once in each of its lives."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import orjson

from .contract import Contract
from .http_client import HttpClient, Lost

MOST = 256


class Contracts:
    """Contracts by model name, read from whichever server was asked for one first."""

    def __init__(self) -> None:
        self._last: dict[str, Contract] = {}
        self._found: WeakKeyDictionary[HttpClient, dict[str, Contract]] = WeakKeyDictionary()

    async def get(self, http: HttpClient, model: str) -> Contract | None:
        """The contract of a model; None if the server has no such model.

        Raises:
            Lost: the server cannot be asked.
        """
        found = self._found.setdefault(http, {})
        if model not in found:
            answer = await http.request("GET", f"/v2/models/{model}/config", {})
            text = await answer.body()
            if answer.status == 503:
                raise Lost("no instance behind this guard answers")
            if answer.status != 200 or len(found) >= MOST:
                return None
            found[model] = self._last[model] = Contract.parse(orjson.loads(text))
        return found[model]

    def known(self, model: str) -> bool:
        """Whether some server has had this model."""
        return model in self._last

    def last(self, model: str) -> Contract | None:
        """What was read last, from a server that may be gone; None if none has had this model."""
        return self._last.get(model)
