"""The application: `create_app(settings)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import choose_encoder

from conch.deployment import Deployment, Pool
from speech.transcriber import Transcriber

from . import errors
from .admission import Admission
from .aliases import own_aliases
from .audio import routes as audio
from .audio.facade import SpeechFacade
from .bodies import Bodies
from .console import page, reference
from .console import routes as console
from .console.history import History
from .console.state import Overview
from .descriptions import Described
from .embeddings import routes as embedding
from .head import Head
from .key_files import load_keys
from .keys import require_key
from .observe import Observe
from .realtime import routes as realtime
from .realtime import secrets as client_secrets
from .retrieval import routes as retrieval
from .retrieval.service import open_retrieval
from .services import Services, ServicesDep
from .settings import Settings
from .text import routes as text
from .tracing import Traces
from .triton import Triton
from .upload import sweep


def create_app(settings: Settings, *, triton: Triton | None = None) -> FastAPI:
    """Build the application for one deployment. `triton` answers for the pools instead of nginx's internal
    listener.

    Keys are checked here although nginx calls /auth for every request: nginx keeps requests without a key
    from using a place, an upload or a body, and the gateway may be reached without nginx.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Services]]:
        sweep()
        made = _services(settings, triton)
        made.measure()
        async with made.retrieval.running() if made.retrieval else nullcontext():
            yield {"services": made}
        await made.triton.close()
        await asyncio.to_thread(made.traces.close)

    app = Described(
        title="Conch",
        version="0.2.0",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    _add_routes(app)
    app.add_middleware(Head)
    app.add_middleware(Bodies)  # inside the next one: what it refuses is counted and logged
    app.add_middleware(Observe)
    return app


def _add_routes(app: FastAPI) -> None:
    key = [Depends(require_key)]
    for wing in (audio, text, embedding, retrieval, console):
        app.include_router(wing.router, dependencies=key)
    for wing in (realtime, client_secrets, page, reference):
        app.include_router(wing.router)
    app.add_api_route("/v1/models", models, dependencies=key)
    app.add_api_route("/v1/models/{model}", one_model, dependencies=key)
    app.add_api_route("/auth", auth, dependencies=key, include_in_schema=False)
    app.add_api_route("/health/live", live)
    app.add_api_route("/health/ready", ready)
    app.add_api_route("/metrics", metrics, dependencies=key)
    app.add_api_route("/metrics/own", own_metrics, include_in_schema=False)
    app.add_api_route("/metrics/own/history", own_history, include_in_schema=False)


WINDOWS = 128  # of all recordings at once, if nobody limits them: half of what a speech façade holds


def _services(settings: Settings, triton: Triton | None) -> Services:
    """Make what requests need from the settings and the deployment that they name."""
    deployment = Deployment.load(settings.deployment)
    pools = {pool.model_id: pool for pool in deployment.pools}
    traces = Traces(settings.traces_url, settings.traces_sampled)
    inner = triton or Triton(
        settings.kserve_url, pools, settings.request_seconds, deployment.inner_key, traces
    )
    gateways = settings.gateways
    embeddings = Admission(settings.embeddings_per_instance, "requests for embeddings", gateways)
    generations = Admission(settings.generations_per_instance, "requests for text", gateways)
    return Services(
        settings,
        pools,
        inner,
        Transcriber(SpeechFacade(inner), settings.windows_at_once),
        Admission(
            settings.recordings_per_instance, "recordings", gateways, WINDOWS // settings.windows_at_once
        ),
        generations,
        embeddings,
        Overview(deployment, inner),
        History(),
        open_retrieval(settings, pools, inner, embeddings, generations),
        load_keys(settings.api_keys_file, required=bool(settings.api_keys_required)),
        load_keys(settings.admin_keys_file, required=bool(settings.admin_keys_required)),
        siblings=deployment.gateways,
        aliases=own_aliases(settings.model_aliases, pools),
        traces=traces,
    )


# What a request may bring, by what a model can do.
TAKES = {
    "transcription": ("audio",),
    "diarization": ("audio",),
    "completion": ("text",),
    "embedding": ("text",),
    "pictures": ("image",),
    "picture_embedding": ("image",),
}


def _model(pool: Pool) -> dict[str, object]:
    """Make OpenAI's model object, with Conch's fields about what it takes."""
    takes = sorted({kind for name in pool.capabilities for kind in TAKES.get(name, ())})
    own = {"input_modalities": takes, "capabilities": sorted(pool.abilities)}
    if pool.languages:
        own["languages"] = list(pool.languages)
    return {"id": pool.model_id, "object": "model", "created": pool.built, "owned_by": "conch", **own}


async def models(services: ServicesDep) -> dict[str, object]:
    """List the models of this deployment."""
    return {"object": "list", "data": [_model(pool) for pool in services.pools.values()]}


async def one_model(model: str, services: ServicesDep) -> dict[str, object]:
    """Get one model by its name or an alias, or 404."""
    return _model(services.pool(model))


async def auth() -> Response:
    """Answer nginx's auth subrequest for a KServe request."""
    return Response(status_code=204)


async def live() -> dict[str, str]:
    """Report that the process answers."""
    return {"status": "live"}


async def ready(services: ServicesDep) -> JSONResponse:
    """Answer 200 if every model answers a tiny real inference, otherwise 503. A model whose instances are so
    busy that it has to wait for ten seconds is ready as long as they serve.
    """
    results = await services.ready()
    return JSONResponse(
        {"status": "ready" if all(results.values()) else "not ready", "models": results},
        200 if all(results.values()) else 503,
    )


async def metrics(services: ServicesDep) -> Response:
    """Return Prometheus text of every gateway of this deployment."""
    return Response(await services.scraped(), media_type=CONTENT_TYPE_LATEST)


async def own_metrics(request: Request, services: ServicesDep) -> Response:
    """Return one gateway's metrics: for Prometheus, which asks for OpenMetrics and gets exemplars, and for
    other gateways, which do not; nginx does not expose it.
    """
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(services.metrics.registry), media_type=kind)


async def own_history(services: ServicesDep) -> Response:
    """Return what one gateway has counted for the console, for other gateways; nginx does not expose it."""
    return Response(services.history.text(), media_type="application/json")
