"""The stack tests of process mode, against containers: the same files, another URL."""

from __future__ import annotations

from tests.stack.test_audio_api import *  # noqa: F403
from tests.stack.test_bad_uploads import *  # noqa: F403
from tests.stack.test_nginx import *  # noqa: F403
from tests.stack.test_realtime import *  # noqa: F403
from tests.stack.test_speech import *  # noqa: F403

del test_a_sender_faster_than_the_engine_is_held_back  # noqa: F821  # half a minute that says nothing about containers
