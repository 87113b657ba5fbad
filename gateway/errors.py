"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

log = structlog.get_logger()


class ApiError(Exception):
    """An error that a client may see; `param` names the field, the message says what to do."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """What a client reads."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> JSONResponse:
    """The JSON body and headers of an error."""
    return JSONResponse(error_body(error), error.status, {"Retry-After": str(error.retry_after)} if error.retry_after else None)


def _from_validation(error: RequestValidationError) -> ApiError:
    """The outermost field is named; inside a union pydantic also names the branches it tried."""
    first = error.errors()[0]
    field = next((str(part) for part in first["loc"][1:] if isinstance(part, str)), None)
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first.get('ctx', {}).get('error', first['msg'])}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field {first['loc'][-1]!r}; remove it", param=str(first["loc"][-1]), code="unknown_parameter")
    if first["type"] in ("model_attributes_type", "dict_type") and len(first["loc"]) == 1:
        return ApiError(400, "the body must be a JSON object, sent as Content-Type: application/json", code="invalid_json")
    said = " is missing; send it" if first["type"] == "missing" else f": {first['msg']}"
    return ApiError(400, f"{field or 'the body'}{said}", param=field, code="invalid_value")


def install(app: FastAPI) -> None:
    """Answer every error of the application in this shape."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def validation(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(_from_validation(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(ApiError(error.status_code, message, code="not_found" if error.status_code == 404 else None))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        request_id = getattr(request.state, "request_id", "none")
        log.error("unexpected error", path=request.url.path, request_id=request_id, exc_info=error)
        return error_response(ApiError(500, f"internal error; the gateway's log has it under request id {request_id}", code="internal_error"))
