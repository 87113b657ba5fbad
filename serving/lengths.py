"""Few lengths stand for all: engines compile or choose kernels for every new shape, and keep them.

OpenVINO 2026.4.1 on 2 cores: 5 to 10 ms for a new length of a text's encoder (flan-t5-small) and 1.2 MB that stay. What is filled up is masked.
Sound keeps its own length, which costs more still (whisper-base: 20 to 60 ms): silence behind it, unmasked, would move a time here and there.
"""

from __future__ import annotations

GRAIN = 16


def grained(length: int, most: int) -> int:
    """The length to fill up to: a multiple of 16, above 256 one of 16 within each doubling, so at most a sixteenth longer; never over `most`."""
    step = max(GRAIN, 1 << max(0, length.bit_length() - 5))
    return min(-(-length // step) * step, most)
