"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from conch.errors import ApiError

from .explanations import Fault, fault

log = structlog.get_logger()


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """Make the body that a client reads."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> JSONResponse:
    """Make the JSON body and headers of an error."""
    return JSONResponse(
        error_body(error),
        error.status,
        {"Retry-After": str(error.retry_after)} if error.retry_after else None,
    )


def internal(error: Exception, request_id: str, **context: str) -> ApiError:
    """Log an unexpected error, and make the 500 that says where it is; it has no details."""
    log.error("unexpected error", **context, request_id=request_id, exc_info=error)
    message = f"internal error; the gateway's log has it under request id {request_id}"
    return ApiError(500, message, code="internal_error")


def _from_validation(error: RequestValidationError) -> ApiError:
    """Turn a validation error into a 400 that names the outermost field, or the unknown one."""
    rows = error.errors()
    first = rows[0]
    if first["type"] == "json_invalid":
        return ApiError(
            400,
            f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}",
            code="invalid_json",
        )
    if first["type"] in ("model_attributes_type", "dict_type") and len(first["loc"]) == 1:
        return ApiError(
            400, "the body must be a JSON object, sent as Content-Type: application/json", code="invalid_json"
        )
    inside = [{**row, "loc": row["loc"][1:]} for row in rows]
    alone = Fault(inside[:1], inside[0]["loc"])  # a parameter of the path or of the query
    found = fault(inside, error.body) if first["loc"][0] == "body" else alone
    return found.error(str(found.path[0]) if found.path else None)


# What OpenAI has and this server has not, and what it has instead.
ELSEWHERE = {
    "/v1/responses": "this server keeps no responses; POST the whole conversation to /v1/responses",
    "/v1/audio/speech": "this server has no text to speech",
    "/v1/images": "this server makes no pictures; it answers about them at /v1/chat/completions",
    "/v1/moderations": "this server does not moderate; leave the check out",
    "/v1/assistants": "this server has no assistants; use /v1/chat/completions",
    "/v1/threads": "this server has no assistants; use /v1/chat/completions",
    "/v1/batches": "this server has no batches; send the requests one by one",
    "/v1/fine_tuning": "this server trains nothing",
    "/v1/uploads": "send the whole file to /v1/files",
}


def _from_http(request: Request, error: HTTPException) -> ApiError:
    """Turn what Starlette refuses into an error: an unknown path, another method, a body that cannot be
    decoded.
    """
    path = request.url.path
    if error.status_code == 405:
        use = " or ".join(name for name in _allowed(request) if name not in ("HEAD", "OPTIONS"))
        return ApiError(
            405, f"{request.method} {path} is not supported; use {use}", code="method_not_allowed"
        )
    if error.status_code == 400:  # FastAPI's answer to a body that Python cannot decode
        return ApiError(400, "the body is not valid JSON in UTF-8; encode it as UTF-8", code="invalid_json")
    if error.status_code != 404:
        return ApiError(error.status_code, f"{request.method} {path}: {error.detail}")
    if own := next((text for start, text in ELSEWHERE.items() if path.startswith(start)), ""):
        return ApiError(404, f"{request.method} {path}: {own}", code="not_found")
    return ApiError(404, f"{request.method} {path}: not found{_meant(request)}", code="not_found")


def _allowed(request: Request) -> list[str]:
    """Return the methods of a path over all its routes."""
    tried = {name: {**request.scope, "method": name} for name in ("DELETE", "GET", "POST")}
    routes = request.app.routes
    found = {name for name, scope in tried.items() if any(r.matches(scope)[0] == Match.FULL for r in routes)}
    return sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set()))


def _meant(request: Request) -> str:
    """Suggest the path for a base URL that lacks /v1, has it twice, is Azure's, or ends in a slash."""
    path = re.sub(r"^/openai(/deployments/[^/]+)?(?=/)", "", request.url.path)
    plain = "/v1/" + re.sub(r"^(/v1)+(?=/)", "", path).strip("/")
    scope = {**request.scope, "path": plain}
    if plain == request.url.path or not any(
        route.matches(scope)[0] != Match.NONE for route in request.app.routes
    ):
        return ""
    return f"; did you mean {plain}? Set the client's base URL to {request.base_url}v1"


def install(app: FastAPI) -> None:
    """Make the application answer every error in this shape."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def validation(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(_from_validation(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = {**(error.headers or {})}
        if error.status_code == 405:
            headers = {"Allow": ", ".join(_allowed(request))}
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
        answer = error_response(_from_http(request, error))
        answer.headers.update(headers)
        return answer

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        request_id = getattr(request.state, "request_id", "none")
        answer = error_response(internal(error, request_id, path=request.url.path))
        answer.headers["x-request-id"] = request_id  # this handler stands outside of Observe
        return answer
