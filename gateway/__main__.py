"""`python -m gateway [SOCKET]`: serve on a Unix socket, or on CONCH_GATEWAY_HOST:CONCH_GATEWAY_PORT."""

from __future__ import annotations

import os
import sys

import uvicorn

from .app import create_app
from .observe import log_json_lines
from .settings import Settings


def main() -> None:
    """Run until SIGTERM; requests in flight are finished first."""
    log_json_lines()
    host, port = (
        os.environ.get("CONCH_GATEWAY_HOST", "127.0.0.1"),
        int(os.environ.get("CONCH_GATEWAY_PORT", "8090")),
    )
    app = create_app(Settings())
    uvicorn.run(
        app,
        host=host,
        port=port,
        uds=sys.argv[1] if len(sys.argv) > 1 else None,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=60,
        ws_max_size=24 * 1024 * 1024,  # OpenAI takes 15 MiB of sound in one event, in base64
        ws_per_message_deflate=False,  # 20 kB of it may be 20 MB inside
        ws_max_queue=2,
        ws_ping_timeout=600,  # a pong waits behind sound that the engine holds back
        h11_max_incomplete_event_size=64 * 1024,
    )


if __name__ == "__main__":
    main()
