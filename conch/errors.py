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
        self.status, self.message, self.param, self.code, self.retry_after = (
            status,
            message,
            param,
            code,
            retry_after,
        )


def refused(param: str, message: str) -> ApiError:
    """Make a 400 that names a field."""
    return ApiError(400, f"{param} {message}", param=param, code="unsupported_value")
