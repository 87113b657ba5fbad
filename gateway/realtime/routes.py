"""WebSocket /v1/realtime?intent=transcription: PCM16 in, words out while somebody speaks. Events are those of
OpenAI's transcription sessions.

Latency: a turn's final words arrive `silence_duration_ms` (500) after its last sound plus one transcription;
during a turn, words that two successive partial transcriptions agree on arrive every PARTIAL seconds. Memory:
a turn is at most 30 s, an uncommitted buffer LONGEST_BUFFER; when the engine is too slow, the socket is not
read, and TCP slows the sender down.
"""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from conch.errors import ApiError

from ..errors import error_response
from ..keys import carried, require_key
from ..services import ServicesDep
from .connection import LiveConnection
from .listener import LiveListener
from .secrets import session_of

router = APIRouter()
USUAL = "gpt-realtime-whisper"  # one of OpenAI's names, which all mean the first speech model


@router.get("/v1/realtime", include_in_schema=False)
async def plain() -> None:
    """Answer requests without a WebSocket upgrade."""
    message = "live sessions are WebSockets; connect to ws(s)://…/v1/realtime?intent=transcription"
    raise ApiError(426, message, code="upgrade_required")


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket, services: ServicesDep) -> None:
    """Transcribe live. `model` in the query, or in the session, names the model; without one it is the first
    speech model of the deployment.
    """
    try:
        await require_key(socket, services)
        if (intent := socket.query_params.get("intent", "transcription")) != "transcription":
            message = f"intent={intent!r} is not supported; use intent=transcription"
            raise ApiError(400, message, param="intent", code="unsupported_value")
        session = session_of(carried(socket, services))
        if named := socket.query_params.get("model"):
            session, _ = session.changed({"audio": {"input": {"transcription": {"model": named}}}})
        name = named or session.audio.input.transcription.model or USUAL
        pool = services.pool(name, "transcription")
        socket.state.model = pool.model_id
        with services.sessions():
            await socket.accept("realtime" if "realtime" in socket.scope.get("subprotocols", ()) else None)
            await LiveListener(
                LiveConnection(socket, services.settings.realtime_idle_seconds), services, pool, session
            ).run()
    except ApiError as error:
        await socket.send_denial_response(error_response(error))
