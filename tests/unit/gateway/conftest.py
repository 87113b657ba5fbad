"""The gateway logs as when it serves: structlog's own default takes two seconds to draw a traceback."""

from __future__ import annotations

from gateway.observe import log_json_lines

log_json_lines()
