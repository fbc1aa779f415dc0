"""Error messages for failed downloads: what failed, why, and what to do next.

The exceptions of huggingface_hub have many types, which differ between its versions. These
functions turn them into `ModelNotFoundError`.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from gpt2np.errors import ModelNotFoundError
from gpt2np.hub.model_files import WEIGHTS, FileSet, conversion_advice, find_pickles
from gpt2np.hub.repository import HubId, cache_folder, missing_in_cache

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Interrupted(Exception):
    """A download has ended before the end of the file. `__cause__` is the reason."""

    def __init__(self, name: str, done: int, size: int) -> None:
        super().__init__(f"{name} after {megabytes(done)} of {megabytes(size)}")


def unreachable(model: HubId, files: FileSet, error: Exception) -> ModelNotFoundError:
    """Return the error for a model whose files could not be listed."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    problem = None if HF_HUB_OFFLINE else _disk_problem(error) or _http_problem(model, error)
    return ModelNotFoundError(problem or _no_network(model, files, error))


def interrupted(model: HubId, error: Exception) -> ModelNotFoundError:
    """Return the error for a download that ended early."""
    if message := _disk_problem(error) or _http_problem(model, error):
        return ModelNotFoundError(message)
    position = f" in {error}" if isinstance(error, Interrupted) else ""
    return ModelNotFoundError(
        f"the download of {model} from {endpoint()} was interrupted{position} "
        f"({root_cause(error)}); try again to resume it"
    )


def incomplete(
    model: HubId, missing: Collection[str], listing: Collection[str]
) -> ModelNotFoundError:
    """Return the error for a repository whose `listing` of files lacks the `missing` files."""
    pickles = find_pickles(name for name in listing if "/" not in name)
    if WEIGHTS.label in missing and pickles:
        advice = conversion_advice(model.repository, model.revision)
        return ModelNotFoundError(
            f"{model} on {endpoint()} has no {WEIGHTS.label}, only {pickles[0]}, a pickle; gpt2np "
            f"never downloads pickles, because they can run code; {advice}"
        )
    return ModelNotFoundError(
        f"{model} on {endpoint()} has no {', '.join(missing)}, which gpt2np requires; choose "
        "another model or revision"
    )


def root_cause(error: BaseException) -> str:
    """Return one line that describes the cause of an error.

    The line is the message of the innermost OSError in the chain of causes or, without an OSError,
    of the outermost error that has a message.
    """
    chain = list(_causes(error))
    system_errors = [e for e in chain if isinstance(e, OSError) and e.errno and e.strerror]
    with_message = [e for e in chain if str(e).strip() and not isinstance(e, Interrupted)]
    cause = (system_errors or with_message[:1] or [error])[-1]
    return str(cause).strip().split("\n")[0] or type(cause).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes, outermost first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _disk_problem(error: Exception) -> str | None:
    """Return an error message if the cache's folder or disk caused the error, else None."""
    for cause in _causes(error):
        if not isinstance(cause, OSError):
            continue
        if cause.errno in _DISK_FULL:
            return (
                f"the disk of the cache {cache_folder()} is full; free some space, or set HF_HOME "
                "to a folder on another disk"
            )
        if cause.errno and cause.filename:
            is_in_cache = str(cause.filename).startswith(str(cache_folder()))
            if isinstance(cause, (PermissionError, IsADirectoryError)) and not is_in_cache:
                return f"cannot read {cause.filename} ({cause.strerror}); make it a readable file"
            return (
                f"cannot write to the cache folder {cache_folder()} ({cause.strerror}: "
                f"{cause.filename}); set HF_HOME to a writable folder"
            )
    return None


def _http_problem(model: HubId, error: Exception) -> str | None:
    """Return an error message if the Hub answered with an HTTP error, else None."""
    from huggingface_hub import errors, get_token

    http_errors = [cause for cause in _causes(error) if isinstance(cause, errors.HfHubHTTPError)]
    http_error = next((cause for cause in http_errors if cause.response is not None), None)
    if http_error is None:
        return None
    if isinstance(http_error, errors.GatedRepoError):
        return (
            f"{model} is gated: request access on {endpoint()}/{model.repository}, and set "
            "HF_TOKEN to a token of the account that has access"
        )
    if isinstance(http_error, errors.RevisionNotFoundError):
        return (
            f"{model.repository} on {endpoint()} has no revision {model.revision!r}; expected a "
            f"branch, tag or commit, see {endpoint()}/{model.repository}/commits/main"
        )
    if isinstance(http_error, errors.RepositoryNotFoundError):
        advice = (
            "the current token cannot read it: set HF_TOKEN to one that can"
            if get_token()
            else "set HF_TOKEN to a token that can read it"
        )
        return (
            f"there is no folder {model} and no model of that name on {endpoint()}; check the "
            f"name; if it is private, {advice}"
        )
    return _http_status(model, http_error)


def _http_status(model: HubId, error: HfHubHTTPError) -> str:
    response = error.response
    status = response.status_code
    details = response.headers.get("X-Error-Message") or response.headers.get("X-Error-Code")
    reason = f"{status}: {details}" if details else f"{status}"
    if status == 401:
        return (
            f"{endpoint()} does not accept the token ({reason}); set HF_TOKEN to a valid one, see "
            f"{endpoint()}/settings/tokens, or unset it and log out with: hf auth logout"
        )
    if status == 403:
        return (
            f"{endpoint()} denies access to {model} ({reason}); set HF_TOKEN to a token with "
            "permission to read it"
        )
    return f"{endpoint()} cannot serve {model} right now ({reason}); try again later"


def _no_network(model: HubId, files: FileSet, error: Exception) -> str:
    from huggingface_hub import constants

    missing = missing_in_cache(model, files)
    state = (
        f"is in the cache {cache_folder()} without {', '.join(missing)}"
        if missing
        else f"is neither a folder nor in the cache {cache_folder()}"
    )
    required = ", ".join(files.missing(lambda _: False))
    advice = (
        f"put {required} into a folder, such as ./{model.repository.rpartition('/')[2]}, and name "
        "that folder as the model, or use the model 'bundled'"
    )
    if constants.HF_HUB_OFFLINE:
        return f"{model} {state}, and HF_HUB_OFFLINE is set; unset it, or {advice}"
    return (
        f"{model} {state}, and cannot be downloaded from {endpoint()} "
        f"({_proxy()}{root_cause(error)}); without a network, {advice}"
    )


def _proxy() -> str:
    """Return a phrase with the address of the proxy, without its password, or "" without proxy."""
    hub, proxies = urlsplit(endpoint()), getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(hub.hostname or ""):
        return ""
    address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return f"through the proxy {address.netloc.rpartition('@')[2]}: "


def endpoint() -> str:
    """Return the address of the Hub."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def megabytes(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1e6:,.1f} MB"
