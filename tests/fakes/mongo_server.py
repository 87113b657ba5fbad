"""A server that speaks MongoDB's wire protocol, over an SQLite file: `mongo_server.py FILE PORT`.

mongoeco's, run by the environment of requirements/mongo.txt: it is no MongoDB, and shares no code with the
client. Without a password: mongoeco 4.11.0 refuses PyMongo's SCRAM.
"""

from __future__ import annotations

import asyncio
import sys

from mongoeco.engines.sqlite import SQLiteEngine
from mongoeco.wire.proxy import AsyncMongoEcoProxyServer


async def serve(file: str, port: int) -> None:
    async with AsyncMongoEcoProxyServer(engine=SQLiteEngine(file), port=port):
        await asyncio.Event().wait()


asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
