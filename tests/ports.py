"""Ports of the tests' stacks: a block for each, so that suites may run next to each other.

A stack with PORT=p uses p − 80 to p + 60; blocks lie below the ports of outgoing connections (32768).
"""

from __future__ import annotations

FIRST, STEP = 9480, 200
SUITES = (
    "stack", "text", "compose", "compose-text", "compose-airgap", "attack", "attack-retrieval", "swarm",
    "console", "console-tls", "retrieval", "retrieval-restored", "targets", "torch", "torch-ranks",
    "trtllm", "trtllm-tp", "trtllm-pictures", "tls", "traces",
    "keys", "nvidia-clients", "clip-torch", "gpu-report", "pictures",
    "supervisor", "compose-torch", "compose-retrieval", "tensorrt", "first-day", "speakers", "chat-models",
    "compose-trtllm",
)  # fmt: skip


def first_port(suite: str) -> int:
    """PORT of a suite's stack."""
    return FIRST + STEP * SUITES.index(suite)
