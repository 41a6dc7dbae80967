"""What an object store's failures mean: an error for people, and whether to ask again.

Of a store's answer a message has the status and the code alone: the rest may repeat keys.
"""

import re

from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, UsageError

_KEYLESS = "169.254.169.254"  # where a client without keys asks a virtual machine in Amazon's cloud for them
_STATUS = re.compile(r"status code: ((\d{3})[ A-Za-z-]*)")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_SIGNS = (  # in what obstore says where no answer came -> why
    ("IncompleteBody", "the answer ended early"),
    ("kind: Interrupted", "the answer ended early"),
    ("ConnectionRefused", "connection refused"),
    ("ConnectionReset", "the connection was reset"),
    ("kind: Timeout", "no answer in time"),
    ("dns error", "the name of the endpoint is not known"),
    ("kind: Connect", "no connection"),
)


class GoneError(DataError):
    """An object that is not there."""


class LostPartError(Exception):
    """Fewer bytes arrived than were asked for."""

    def __init__(self, arrived: int, wanted: int) -> None:
        super().__init__(f"{arrived} of {wanted} bytes arrived")


class TooShortError(Exception):
    """The object has fewer bytes than were asked for."""

    def __init__(self, size: int) -> None:
        super().__init__(f"UnexpectedRange: the object has {size} bytes")


def store_error(error: Exception, what: str, attempt: int) -> tuple[BenchError, bool]:
    """The error for people, and whether asking again may help. OSError of a file of ours is raised.

    what: 'OBJECT cannot be read at ENDPOINT'. attempt: how often it was asked for so far.
    """
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        raise error
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    number = int(status[2]) if status else 404 if isinstance(error, FileNotFoundError) else 0
    answer = (status[1].strip() if status else str(number)) + (f" ({code[1]})" if code else "")
    if final := _final(text, number, code[1] if code else "", answer, what):
        return final, False
    reason = answer if number else _reason(error, text)
    times = "" if attempt == 1 else f", after {attempt} attempts"
    return EnvironmentFailure(
        f"{what}: {reason}{times}. Look at the store and at the network to it, then run again; AWS_MAX_ATTEMPTS "
        "allows more attempts."
    ), not number or number >= 500 or number in (408, 429)


def _final(text: str, number: int, code: str, answer: str, what: str) -> BenchError | None:
    """The error for what stays as it is, however often it is asked for; None for what may pass."""
    causes: tuple[tuple[bool, type[BenchError], str], ...] = (
        (
            _KEYLESS in text,
            EnvironmentFailure,
            "no credentials were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true "
            "for a public bucket.",
        ),
        (code == "NoSuchBucket", UsageError, f"{answer}, there is no such bucket. Name one that exists."),
        (
            number == 404,
            GoneError,
            f"{answer}, the object is gone or never was there. Upload it again, or make the dataset anew with "
            "dlio-bench generate; `dlio-bench verify` names every object that is missing.",
        ),
        (
            number == 416 or "UnexpectedRange" in text,
            DataError,
            f"{answer if number else 'fewer bytes than were asked for'}, the object ends before its last sample. "
            "Upload it again, or make the dataset anew; `dlio-bench verify` names every such object.",
        ),
        (
            "BadScheme" in text,
            EnvironmentFailure,
            "it has no encryption (http). Set AWS_ALLOW_HTTP=true to allow that, or name an https endpoint in "
            "AWS_ENDPOINT_URL.",
        ),
        ("NotPartial" in text, EnvironmentFailure, "the store sends whole objects only. Name one that serves ranges."),
        (
            number in (400, 401, 403) or 300 <= number < 400,
            EnvironmentFailure,
            f"{answer}. Check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), "
            "AWS_REGION and what they may do with this bucket.",
        ),
    )
    return next((kind(f"{what}: {reason}") for applies, kind, reason in causes if applies), None)


def _reason(error: Exception, text: str) -> str:
    """Why no answer came, as far as it is known."""
    if isinstance(error, LostPartError):
        return text
    return next((reason for sign, reason in _SIGNS if sign in text), f"no answer ({type(error).__name__})")
