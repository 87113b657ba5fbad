"""A server that speaks MongoDB's wire protocol, over an SQLite file:
`mongo_server.py FILE PORT USER PASSWORD`.

mongoeco's, run by the environment of requirements/mongo.txt: it is no MongoDB, and shares no code with the
client. Clients authenticate by SCRAM-SHA-256 and must name it (authMechanism): mongoeco 4.11.0 does not say
which mechanisms it has, and SCRAM-SHA-1, which PyMongo then takes, is not as MongoDB has it.
"""

from __future__ import annotations

import asyncio
import sys

from mongoeco.engines.sqlite import SQLiteEngine
from mongoeco.wire.auth import WireAuthUser
from mongoeco.wire.proxy import AsyncMongoEcoProxyServer


async def serve(file: str, port: int, user: WireAuthUser) -> None:
    async with AsyncMongoEcoProxyServer(engine=SQLiteEngine(file), port=port, auth_users=(user,)):
        await asyncio.Event().wait()


asyncio.run(serve(sys.argv[1], int(sys.argv[2]), WireAuthUser(sys.argv[3], sys.argv[4])))
