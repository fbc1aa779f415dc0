"""A server on loopback that answers as huggingface.co does, as far as huggingface_hub asks.

Model info, file tree and files by revision; large files lie on another host, to which it redirects;
private, gated and renamed repositories; and, when told to, every kind of trouble.
"""

import hashlib
import http.server
import json
import re
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import unquote

LARGE = ".safetensors"  # files with this suffix lie on the other host


@dataclass
class Repository:
    """revisions: branch or tag → {file: bytes}. The rest says what keeps one from having them."""

    revisions: dict
    token: str | None = None
    error: tuple[int, dict] | None = None  # status and headers of every answer

    def commit(self, revision):
        """The commit that a branch, a tag, a commit or the beginning of one means, or None."""
        commits = {name: _commit_of(name) for name in self.revisions}
        if revision in commits:
            return commits[revision]
        matching = [c for c in commits.values() if len(revision) >= 7 and c.startswith(revision)]
        return matching[0] if matching else None

    def files(self, commit):
        return next(f for name, f in self.revisions.items() if _commit_of(name) == commit)


@cache
def _sha256(content):
    """Python remembers the hash of a bytes object, by which it is found again."""
    return hashlib.sha256(content).hexdigest()


def _commit_of(revision):
    return hashlib.sha1(revision.encode()).hexdigest()


@dataclass
class Trouble:
    """What goes wrong with large files.

    cut: the connection breaks after so many bytes, in the first `times` answers. stall: no more
    comes after so many bytes, until the server ends. damage: the last byte is wrong, in the first
    `times` answers. ranges: whether Range is understood. delay: seconds before every answer.
    refused: the name of a small file that is not given.
    """

    cut: int | None = None
    stall: int | None = None
    damage: bool = False
    times: int = 1_000_000
    ranges: bool = True
    delay: float = 0.0
    refused: str | None = None


@dataclass
class Hub:
    repositories: dict  # name → Repository
    renamed: dict = field(default_factory=dict)  # old name → name
    trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self):
        self.requests = []  # "GET /path", …
        self.headers = []  # of the same requests
        self._ended = threading.Event()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        port = self.server.server_address[1]
        self.url, self.large_url = f"http://127.0.0.1:{port}", f"http://localhost:{port}/large"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._ended.set()
        self.server.shutdown()
        self.server.server_close()

    def forget(self):
        """Forget which requests there were."""
        self.requests.clear()
        self.headers.clear()

    def fetched(self):
        """The names of the files that were asked for."""
        return {r.rpartition("/")[2] for r in self.requests if "/resolve/" in r}

    def large_requests(self):
        """The Range of each request for the content of a large file, None where it had none."""
        return [
            headers["Range"]
            for request, headers in zip(self.requests, self.headers, strict=True)
            if request.startswith("GET /large/")
        ]

    def answer(self, request):
        """Answer a request, and keep it."""
        self.requests.append(f"{request.command} {request.path}")
        self.headers.append(request.headers)
        time.sleep(self.trouble.delay)
        path = unquote(request.path.split("?")[0])
        if path.startswith("/large/"):
            return self._send_large(request, path.rpartition("/")[2])
        for old, new in self.renamed.items():
            if re.match(rf"(/api/models)?/{old}(/|$)", path):
                there = request.path.replace(f"/{old}", f"/{new}", 1)
                return self._send(request, 307, {"Location": there})
        is_api = path.startswith("/api/models/")
        name, _, rest = (
            path.removeprefix("/api/models")
            .strip("/")
            .partition(
                "/resolve/" if not is_api else "/revision/" if "/revision/" in path else "/tree/"
            )
        )
        repository = self.repositories.get(name)
        if problem := self._refusal(request, repository):
            return self._send(request, *problem)
        if is_api:
            return self._send_info(request, name, repository, rest or "main", "/tree/" in path)
        revision, _, file = rest.rpartition("/")
        return self._send_file(request, repository, revision, file)

    def _refusal(self, request, repository):
        authorization = request.headers["Authorization"]
        if authorization == "Bearer hf_invalid":
            message = "Invalid credentials in Authorization header"
            return 401, {"X-Error-Message": message}
        if repository is None or repository.token not in (None, (authorization or "")[7:]):
            code = 404 if authorization else 401
            return code, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Not found"}
        return repository.error

    def _send_info(self, request, name, repository, revision, tree):
        commit = repository.commit(revision)
        if commit is None:
            return self._send(request, 404, {"X-Error-Code": "RevisionNotFound"})
        files = repository.files(commit)
        if tree:
            return self._send_json(request, [_entry(*item) for item in files.items()])
        siblings = [{"rfilename": file} for file in files]
        info = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []}
        return self._send_json(request, info)

    def _send_file(self, request, repository, revision, file):
        commit = repository.commit(revision)
        if commit is None:
            return self._send(request, 404, {"X-Error-Code": "RevisionNotFound"})
        content = repository.files(commit).get(file)
        if file == self.trouble.refused:
            return self._send(request, 403, {})
        headers = {"X-Repo-Commit": commit}
        if content is None:
            return self._send(request, 404, headers | {"X-Error-Code": "EntryNotFound"})
        if not file.endswith(LARGE):
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self._send(request, 200, headers | {"ETag": etag}, content)
        digest = _sha256(content)
        headers |= {
            "Location": f"{self.large_url}/{digest}",
            "X-Linked-ETag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
        }
        return self._send(request, 302, headers)

    def _send_large(self, request, digest):
        files = (
            content
            for repository in self.repositories.values()
            for files in repository.revisions.values()
            for content in files.values()
        )
        content = next(c for c in files if _sha256(c) == digest)
        start = re.match(r"bytes=(\d+)-", request.headers["Range"] or "")
        headers, trouble = {}, self.trouble
        if start and trouble.ranges:
            first, size = int(start[1]), len(content)
            headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
            content = content[first:]
        trouble.times -= 1
        if trouble.times < 0:
            trouble = Trouble()
        if trouble.damage:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._send(request, 206 if headers else 200, headers, content, trouble)

    def _send_json(self, request, content):
        self._send(request, 200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _send(self, request, status, headers, body=b"", trouble=None):
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "HEAD":
            return
        trouble = trouble or Trouble()
        request.wfile.write(body[: trouble.cut if trouble.stall is None else trouble.stall])
        if trouble.stall is not None:
            self._ended.wait()


def _entry(file, content):
    entry = {"type": "file", "path": file, "size": len(content), "oid": "0" * 40}
    if file.endswith(LARGE):
        digest = _sha256(content)
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return entry
