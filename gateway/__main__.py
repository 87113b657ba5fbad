"""`python -m gateway [SOCKET]`: serve on a Unix socket, or on CONCH_GATEWAY_HOST:CONCH_GATEWAY_PORT."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from conch import blas, proxies

os.environ.update(blas.settings())  # numpy's library reads them when it is loaded

from .app import create_app
from .observe import log_json_lines
from .settings import Address, Settings

# mallopt(3): bytes from which an array is mapped by itself, those that may stay free at a heap's end, and how
# many heaps there are, which threads share.
MALLOC = {-3: 8 << 20, -1: 32 << 20, -8: 8}


class GatewayServer(uvicorn.Server):
    """uvicorn's server, which polls every 0.1 s whether it should end; this one is notified. Nothing else
    depends on that polling here: nginx writes the date, and the number of requests is not limited.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.tell: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        """Wait for the signal, which may have arrived already."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        self.tell = lambda: loop.call_soon_threadsafe(told.set)
        if not self.should_exit:
            await told.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        super().handle_exit(sig, frame)
        self.tell()


def keep_memory() -> None:
    """Configure glibc to keep memory freed by audio arrays: otherwise it returns it to the system each time,
    and page faults to get it again took a seventh of the gateway's time.
    """
    with suppress(AttributeError):  # another C library
        for option, value in MALLOC.items():
            ctypes.CDLL(None).mallopt(option, value)


def main() -> None:
    """Run until SIGTERM; requests in flight are finished first."""
    keep_memory()
    proxies.forget()
    log_json_lines()
    settings = Settings.of("gateway")
    if len(sys.argv) > 1:
        where: dict[str, Any] = {"uds": sys.argv[1]}
    else:
        address = Address.of("gateway")
        where = {"host": address.gateway_host, "port": address.gateway_port}
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        **where,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=60,
        ws_max_size=24 * 1024 * 1024,  # OpenAI takes 15 MiB of sound in one event, in base64
        ws_per_message_deflate=False,  # 20 kB of it may be 20 MB inside
        ws_max_queue=2,
        ws_ping_timeout=600,  # a pong waits after sound that the engine holds back
        h11_max_incomplete_event_size=64 * 1024,
        date_header=False,
    )
    with suppress(KeyboardInterrupt):
        GatewayServer(config).run()


if __name__ == "__main__":
    main()
