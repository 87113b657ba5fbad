"""The stack tests of process mode, against containers: the same files, another URL."""

from __future__ import annotations

from tests.stack.test_audio_api import *  # noqa: F403
from tests.stack.test_bad_uploads import *  # noqa: F403
from tests.stack.test_door import *  # noqa: F403
from tests.stack.test_realtime import *  # noqa: F403
from tests.stack.test_speech import *  # noqa: F403
