"""Stack tests of process mode against containers: what nginx lets through, and the codecs of the image. The
Python that answers is the same.
"""

from __future__ import annotations

from tests.stack.test_nginx import *  # noqa: F403
from tests.stack.test_realtime import test_speech_comes_back_while_it_is_spoken
from tests.stack.test_speech import (
    test_grpc_through_nginx,
    test_sdk_json,
    test_stream_carries_the_text_so_far,
)

__all__ = [
    "test_grpc_through_nginx",
    "test_sdk_json",
    "test_speech_comes_back_while_it_is_spoken",
    "test_stream_carries_the_text_so_far",
]
