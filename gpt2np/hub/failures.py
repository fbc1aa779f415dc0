"""What went wrong on the way from the Hub, in one line: what, why, and what to do next.

huggingface_hub's exceptions are of many kinds, and differ between its versions; here they become
`ModelNotFoundError`.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from gpt2np.errors import ModelNotFoundError
from gpt2np.hub.cache import cache_folder, missing_in_cache
from gpt2np.hub.files import WEIGHTS, FileList
from gpt2np.hub.names import HubId
from gpt2np.hub.weight_files import conversion_advice, pickles_among

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


class Interrupted(Exception):
    """A file came only in part; its cause is the reason."""

    def __init__(self, name: str, done: int, size: int) -> None:
        super().__init__(f"{name} after {_megabytes(done)} of {_megabytes(size)}")


def not_reached(model: HubId, files: FileList, error: Exception) -> ModelNotFoundError:
    """The Hub did not say what `model` holds."""
    text = _local(error) or _refusal(model, error) or _no_network(model, files, error)
    return ModelNotFoundError(text)


def broken_off(model: HubId, error: Exception) -> ModelNotFoundError:
    """The Hub said what `model` holds, but did not give it all."""
    if text := _local(error) or _refusal(model, error):
        return ModelNotFoundError(text)
    where = f" in {error}" if isinstance(error, Interrupted) else ""
    return ModelNotFoundError(
        f"the download of {model} from {_endpoint()} broke off{where} ({reason(error)}); try "
        "again: it goes on from there"
    )


def incomplete(
    model: HubId, missing: Collection[str], listing: Collection[str]
) -> ModelNotFoundError:
    """The repository lacks what can't be done without."""
    pickles = pickles_among(name for name in listing if "/" not in name)
    if WEIGHTS.label in missing and pickles:
        advice = conversion_advice(model.repository, model.revision)
        return ModelNotFoundError(
            f"{model} on {_endpoint()} has no {WEIGHTS.label}, only {pickles[0]}, a pickle, which "
            f"can run code and is never fetched; {advice}"
        )
    return ModelNotFoundError(
        f"{model} on {_endpoint()} has no {', '.join(missing)}, without which gpt2np can't use it"
    )


def damaged(name: str) -> ModelNotFoundError:
    """The content of a file is not what the Hub says it is."""
    return ModelNotFoundError(
        f"{name} arrived damaged from {_endpoint()}: its SHA-256 is not the one announced; try "
        "again, and if that does not help, another HF_ENDPOINT or network"
    )


def no_space(name: str, needed: int, free: int) -> ModelNotFoundError:
    """A file is larger than the disk has room for."""
    return ModelNotFoundError(
        f"no space for {name}: it needs {_megabytes(needed)}, and the disk of the cache "
        f"{cache_folder()} has {_megabytes(free)} free; free some, or set HF_HOME to a folder on "
        "another disk"
    )


def reason(error: BaseException) -> str:
    """Why, in a few words: the system's, if it is behind the error, else the error's first line."""
    chain = list(_causes(error))
    system = [e for e in chain if isinstance(e, OSError) and e.errno and e.strerror]
    spoken = [e for e in chain if str(e).strip() and not isinstance(e, Interrupted)]
    told = (system or spoken[:1] or [error])[-1]
    return str(told).strip().split("\n")[0] or type(told).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _local(error: Exception) -> str | None:
    """What is wrong with the cache's folder or disk, None if it is something else."""
    for cause in _causes(error):
        if not isinstance(cause, OSError):
            continue
        if cause.errno in _DISK_IS_FULL:
            return (
                f"the disk of the cache {cache_folder()} is full; free some space, or set HF_HOME "
                "to a folder on another disk"
            )
        if cause.errno and cause.filename:
            return (
                f"the cache folder {cache_folder()} can't be written ({cause.strerror}: "
                f"{cause.filename}); set HF_HOME to a folder that can"
            )
    return None


def _refusal(model: HubId, error: Exception) -> str | None:
    """What the Hub answered instead of the files, None if it answered nothing."""
    from huggingface_hub import errors

    answers = [cause for cause in _causes(error) if isinstance(cause, errors.HfHubHTTPError)]
    answer = next((cause for cause in answers if cause.response is not None), None)
    if answer is None:
        return None
    if isinstance(answer, errors.GatedRepoError):
        return (
            f"{model} needs its owner's permission: ask for it on "
            f"{_endpoint()}/{model.repository}, and set HF_TOKEN to a token of the account that "
            "has it"
        )
    if isinstance(answer, errors.RevisionNotFoundError):
        return (
            f"{model.repository} on {_endpoint()} has no revision {model.revision!r}; expected a "
            f"branch, a tag or a commit, see {_endpoint()}/{model.repository}/commits/main"
        )
    if isinstance(answer, errors.RepositoryNotFoundError):
        return _no_repository(model)
    return _status(model, answer)


def _no_repository(model: HubId) -> str:
    from huggingface_hub import get_token

    private = (
        "if it is private, the token that is set may not read it: set HF_TOKEN to one that may"
        if get_token()
        else "if it is private, set HF_TOKEN to a token that may read it"
    )
    return (
        f"there is no folder {model} and no model of that name on {_endpoint()}; check the name; "
        f"{private}"
    )


def _status(model: HubId, answer: Exception) -> str:
    response = answer.response  # type: ignore[attr-defined]
    status = response.status_code
    said = response.headers.get("X-Error-Message") or response.headers.get("X-Error-Code")
    told = f"{status}: {said}" if said else f"{status}"
    if status == 401:
        return (
            f"{_endpoint()} does not accept the token ({told}); set HF_TOKEN to a valid one, see "
            f"{_endpoint()}/settings/tokens, or unset it and log out with: hf auth logout"
        )
    if status == 403:
        return (
            f"{_endpoint()} does not let you have {model} ({told}); set HF_TOKEN to a token with "
            "permission to read it"
        )
    return f"{_endpoint()} can't give {model} right now ({told}); try again later"


def _no_network(model: HubId, files: FileList, error: Exception) -> str:
    from huggingface_hub import constants

    lacking = missing_in_cache(model, files)
    state = (
        f"is in the cache {cache_folder()} without {', '.join(lacking)}"
        if lacking
        else (f"is neither a folder nor in the cache {cache_folder()}")
    )
    wanted = ", ".join(files.missing(lambda _: False))
    put = (
        f"put {wanted} into a folder, say ./{model.repository.rpartition('/')[2]}, and name that "
        "as the model, or use the model 'bundled'"
    )
    if constants.HF_HUB_OFFLINE:
        return f"{model} {state}, and HF_HUB_OFFLINE is set; unset it, or {put}"
    return (
        f"{model} {state}, and can't be fetched from {_endpoint()} ({_proxy()}{reason(error)}); "
        f"without a network, {put}"
    )


def _proxy() -> str:
    """Which proxy the request went through, without its password; "" if none."""
    endpoint = urlsplit(_endpoint())
    proxies = getproxies()
    proxy = proxies.get(endpoint.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(endpoint.hostname or ""):
        return ""
    address = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return f"through the proxy {address.netloc.rpartition('@')[2]}: "


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
