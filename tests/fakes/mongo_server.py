"""A server that speaks MongoDB's wire protocol, over an SQLite file:
`mongo_server.py FILE PORT USER PASSWORD [HOST]`, 127.0.0.1 by default.

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


async def serve(file: str, port: int, user: WireAuthUser, host: str) -> None:
    engine = SQLiteEngine(file)
    async with AsyncMongoEcoProxyServer(engine=engine, host=host, port=port, auth_users=(user,)):
        await asyncio.Event().wait()


FILE, PORT, NAME, SECRET, *HOST = sys.argv[1:]
asyncio.run(serve(FILE, int(PORT), WireAuthUser(NAME, SECRET), *HOST or ["127.0.0.1"]))
