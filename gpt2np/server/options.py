"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpt2np.options import check_options, option

_queue = partial(option, group="Queue")
_access = partial(option, group="Access")


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    max_running: int = _queue(16, "Maximum number of sequences that each model runs at once", low=1)
    max_queued: int = _queue(
        1024, "Maximum number of waiting sequences; further requests get status 503", low=1
    )
    timeout: float = _queue(
        600.0,
        "Abort a request after this many seconds, with status 504",
        metavar="SECONDS",
        above=0,
    )
    shutdown_timeout: float = _queue(
        30.0,
        "At shutdown, wait at most this many seconds for running requests",
        metavar="SECONDS",
        above=0,
    )
    api_key: str | None = _access(
        None,
        "Require the header 'Authorization: Bearer KEY' in all requests, except to /health",
        metavar="KEY",
        default_text="$GPT2NP_API_KEY, or none",
    )
    allowed_hosts: tuple[str, ...] = _access(
        (),
        "Without a key: also accept requests to the host NAME, besides localhost and IP addresses",
        flags=("--allowed-host",),
        metavar="NAME",
    )
    cors_origins: tuple[str, ...] = _access(
        (),
        "Allow web pages from ORIGIN to use the server; '*' allows all web pages",
        flags=("--cors-origin",),
        metavar="ORIGIN",
    )
    access_log: bool = _access(False, "Log each request, without its body, to stderr")

    def __post_init__(self) -> None:
        check_options(self)
