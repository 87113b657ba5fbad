"""Errors that clients see."""

from __future__ import annotations


class ApiError(Exception):
    """An error that clients see. `param` names the field, the message gives the remedy, `status` is the HTTP
    status that KServe and OpenAI share.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code, self.retry_after = code, retry_after


def invalid(param: str | None, message: str) -> ApiError:
    """Make a 400 for a field's value; the message is a whole sentence."""
    return ApiError(400, message, param=param, code="invalid_value")


def refused(param: str, message: str) -> ApiError:
    """Make a 400 that begins with a field's name: what it asks for is not supported."""
    return ApiError(400, f"{param} {message}", param=param, code="unsupported_value")


def too_long(param: str, message: str) -> ApiError:
    """Make a 400 for a text that does not fit the model, under OpenAI's code, by which clients shorten it."""
    return ApiError(400, message, param=param, code="context_length_exceeded")


def unknown(param: str | None, shown: str) -> ApiError:
    """Make a 400 for a field that does not exist; `shown` is its name in the message."""
    return ApiError(400, f"unknown field {shown!r}; remove it", param=param, code="unknown_parameter")
