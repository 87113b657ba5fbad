"""`python -m ops.supervisord FOLDER`: supervisord, which reacts to a signal, such as a child's end, at once;
supervisor 4 alone notices it within a second.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from supervisor.medusa.asyncore_25 import ExitNow
from supervisor.options import ServerOptions
from supervisor.states import SupervisorStates
from supervisor.supervisord import Supervisor


class Signals:
    """A pipe that Python writes a byte to at each signal, in the form that supervisor's poll waits for."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        """Take one byte: after each poll supervisor looks for ended children and for one signal."""
        os.read(self.reader, 1)


class PromptSupervisor(Supervisor):  # type: ignore[misc]
    """supervisor's process, with that pipe among what it polls."""

    def runforever(self) -> None:
        """Run until it is told to end."""
        signals = Signals()
        self.options.get_socket_map()[signals.reader] = signals
        super().runforever()


def main() -> None:
    """Run what supervisord.conf of the folder describes, until SIGTERM or a shutdown at its socket."""
    os.chdir(sys.argv[1])
    first = True
    while True:  # again after SIGHUP, as supervisor's own
        options = ServerOptions()
        options.realize(["-c", "supervisord.conf"])
        options.first, options.test = first, False
        with suppress(ExitNow):
            PromptSupervisor(options).main()
        options.close_httpservers()
        options.close_logger()
        first = False
        if options.mood < SupervisorStates.RESTARTING:
            break


if __name__ == "__main__":
    main()
