"""A Milvus server at port 19530: `milvus_server.py FOLDER`.

The wheel's own script takes another port where connections to a killed server have not timed out yet
(TIME_WAIT), so nobody would find what was started again.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from milvus import MilvusServer, MilvusServerConfig

# As docker/compose.retrieval.yaml has it; how long a killed server counts as alive is for the tests' sake.
INTERIM = "QUERYNODE_SEGCORE_INTERIMINDEX_NPROBE"
SESSION_SECONDS = 15


class SamePorts(MilvusServerConfig):
    """Ports as the server binds them: Go sets SO_REUSEADDR."""

    def try_bind_port(self, port: int) -> socket.socket | None:
        """Listening, or None where something else listens."""
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            probe.close()
            return None
        return probe


os.environ.setdefault(INTERIM, "64")
config = SamePorts(data_dir=str(Path(sys.argv[1]).resolve()))
config.set("common.session.ttl", SESSION_SECONDS)
server = MilvusServer(config, wait_for_started=False)
server.start()
assert server.server_proc
sys.exit(server.server_proc.wait())
