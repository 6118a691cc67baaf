"""Exceptions, one for each kind of error that the server and the client library know."""

from __future__ import annotations

__all__ = [
    "Error",
    "Cancelled",
    "Unknown",
    "InvalidArgument",
    "InvalidType",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
]


class Error(Exception):
    """What went wrong, in a sentence. The base of all exceptions of this package.

    Attributes:
        code: its kind as `google.rpc.Code` names it: "NOT_FOUND", "INVALID_ARGUMENT", ...
        retry_after: seconds after which the same call may succeed, if the server said so; else
            None.
        request_id: what the server's log knows the request by, for its operator; None if none
            reached it.
    """

    code: str = "UNKNOWN"

    def __init__(
        self, message: str = "", retry_after: float | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.request_id = request_id

    def __str__(self) -> str:
        text = str(self.args[0])
        return text if self.request_id is None else f"{text} (request {self.request_id})"

    def __reduce__(self) -> tuple[type[Error], tuple[str, float | None, str | None]]:
        return type(self), (self.args[0], self.retry_after, self.request_id)


class Cancelled(Error):
    """The call was cancelled."""

    code = "CANCELLED"


class Unknown(Error):
    """An error of no other kind."""

    code = "UNKNOWN"


class InvalidArgument(Error, ValueError):
    """An argument is wrong, whatever the server holds: a shape, a number, a name."""

    code = "INVALID_ARGUMENT"


class InvalidType(InvalidArgument, TypeError):
    """An argument has a type, or elements of a type, that cannot be used there."""


class DeadlineExceeded(Error, TimeoutError):
    """The call's timeout was over before it ended."""

    code = "DEADLINE_EXCEEDED"


class NotFound(Error, LookupError):
    """There is no matrix or buffer of that name."""

    code = "NOT_FOUND"


class AlreadyExists(Error):
    """The name is taken; `replace=True` takes its place."""

    code = "ALREADY_EXISTS"


class PermissionDenied(Error):
    """The caller may not do that."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """A limit of the server's is reached: what to free, or `retry_after`."""

    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """Not in this state: a closed client, a matrix of another server, ..."""

    code = "FAILED_PRECONDITION"


class Aborted(Error):
    """Somebody was faster (`if_version`), or what a GPU had queued was given up."""

    code = "ABORTED"


class OutOfRange(Error):
    """Beyond the end."""

    code = "OUT_OF_RANGE"


class Unimplemented(Error, NotImplementedError):
    """Neither this library nor this server can do that."""

    code = "UNIMPLEMENTED"


class Internal(Error):
    """A mistake in the server or the library."""

    code = "INTERNAL"


class Unavailable(Error, ConnectionError):
    """No server answers there. The same client works again when one does."""

    code = "UNAVAILABLE"


class DataLoss(Error):
    """What the server had stored is damaged."""

    code = "DATA_LOSS"


class Unauthenticated(Error):
    """The server does not know who is calling."""

    code = "UNAUTHENTICATED"


# By google.rpc.Code.
BY_CODE: dict[int, type[Error]] = {
    1: Cancelled,
    2: Unknown,
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: Aborted,
    11: OutOfRange,
    12: Unimplemented,
    13: Internal,
    14: Unavailable,
    15: DataLoss,
    16: Unauthenticated,
}
