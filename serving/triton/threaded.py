"""A Triton model that answers from threads: a request that waits for the engine never blocks another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from ..errors import message_of
from .calls import BlsClient
from .requests import RequestPool
from .stub import Request, Sender, Utils
from .watch import Watch


class ThreadedEndpoint(ABC):
    """`calls` reaches callers and other models; `watch` stops requests whose clients have gone; `encode`
    makes an error's text.
    """

    def __init__(self, utils: Utils, encode: Callable[[Exception], str] = message_of) -> None:
        self.calls, self.watch = BlsClient(utils, encode), Watch()
        self.requests = RequestPool(self.answer, self.calls.refuse)

    @abstractmethod
    def answer(self, request: Request, sender: Sender) -> None:
        """Answer one request in its own thread; an exception becomes its error.

        Raises:
            ValueError: it cannot be served.
            EngineError: the engine refused, or failed.
        """

    def execute(self, requests: Iterable[Request]) -> None:
        """Queue requests; never blocks."""
        self.requests.submit(requests)

    def close(self) -> None:
        """Stop when the model is unloaded."""
        self.requests.close()
        self.calls.close()
