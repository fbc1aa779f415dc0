"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.options import Flag, Integer, Number, Text, Texts, check_options, option


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    max_running: int = option(
        16, Integer(1), "Maximum number of sequences that a model runs at once", group="Queue"
    )
    max_queued: int = option(
        1024,
        Integer(1),
        "Maximum number of waiting sequences; further requests get status 503",
        group="Queue",
    )
    cache_bytes: int | None = option(
        None,
        Integer(1, is_optional=True),
        "Maximum number of bytes for a model's KV caches",
        group="Queue",
        default_text="$GPT2NP_MAX_CACHE_BYTES, or 1 GiB",
    )
    timeout: float = option(
        600.0,
        Number(0, is_open=True),
        "Abort a request after this time, with status 504",
        group="Queue",
        metavar="SECONDS",
    )
    shutdown_timeout: float = option(
        30.0,
        Number(0, is_open=True),
        "Time limit for running requests at shutdown",
        group="Queue",
        metavar="SECONDS",
    )
    api_key: str | None = option(
        None,
        Text(is_optional=True),
        "Require the header Authorization: Bearer KEY in requests, except to /health",
        group="Access",
        metavar="KEY",
        default_text="$GPT2NP_API_KEY, or none",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        Texts(),
        "If no key is set, accept the Host header NAME, besides localhost",
        details="IP addresses are always allowed.",
        group="Access",
        flags=("--allowed-host",),
        metavar="NAME",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        Texts(),
        "Allow web pages from ORIGIN; '*' allows all",
        group="Access",
        flags=("--cors-origin",),
        metavar="ORIGIN",
    )
    access_log: bool = option(
        False, Flag(), "Log each request, without its body, to stderr", group="Access"
    )
    log_prompts: bool = option(
        False, Flag(), "Log the prompts of each request to stderr", group="Access"
    )

    def __post_init__(self) -> None:
        check_options(self)
