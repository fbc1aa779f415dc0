"""A local imitation of huggingface.co with everything that huggingface_hub requests.

Serves model info, file trees and files by revision, redirects large files to another host, has
private, gated and renamed repositories, and simulates network trouble on demand.
"""

import hashlib
import http.server
import json
import re
import threading
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import unquote

LARGE = ".safetensors"  # suffix of the files on the other host


@dataclass
class Repository:
    """A model repository.

    Attributes:
        revisions: branch or tag → {file: bytes}.
        token: token of a private repository.
        error: status and headers of every answer, such as those of a gated repository.
    """

    revisions: dict
    token: str | None = None
    error: tuple[int, dict] | None = None

    def commit(self, revision):
        """Resolve a branch, tag, commit or abbreviated commit to a commit, or None."""
        commits = {name: _commit_of(name) for name in self.revisions}
        if revision in commits:
            return commits[revision]
        matching = [c for c in commits.values() if len(revision) >= 7 and c.startswith(revision)]
        return matching[0] if matching else None

    def files(self, commit):
        return next(f for name, f in self.revisions.items() if _commit_of(name) == commit)


@cache
def _sha256(content):
    """Return the SHA-256; the cache is fast because Python caches the hash of bytes."""
    return hashlib.sha256(content).hexdigest()


def _commit_of(revision):
    return hashlib.sha1(revision.encode()).hexdigest()


@dataclass
class Trouble:
    """Simulated network trouble.

    Attributes:
        cut: close the connection after this number of bytes of a large file.
        refused: name of a small file that is answered with status 403.
    """

    cut: int | None = None
    refused: str | None = None


@dataclass
class Hub:
    repositories: dict  # name → Repository
    renamed: dict = field(default_factory=dict)  # old name → name
    trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self):
        self.requests = []  # "GET /path", …
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
        self.server.shutdown()
        self.server.server_close()

    def forget(self):
        """Clear the recorded requests."""
        self.requests.clear()

    def fetched(self):
        """Return the names of the requested files."""
        return {r.rpartition("/")[2] for r in self.requests if "/resolve/" in r}

    def answer(self, request):
        """Record and answer a request."""
        self.requests.append(f"{request.command} {request.path}")
        path = unquote(request.path.split("?")[0])
        if path.startswith("/large/"):
            return self._send_large(request, path.rpartition("/")[2])
        for old, new in self.renamed.items():
            if re.match(rf"(/api/models)?/{old}(/|$)", path):
                target = request.path.replace(f"/{old}", f"/{new}", 1)
                return self._send(request, 307, {"Location": target})
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
        self._send(request, 200, {}, content, self.trouble.cut)

    def _send_json(self, request, content):
        self._send(request, 200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _send(self, request, status, headers, body=b"", cut=None):
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[:cut])


def _entry(file, content):
    entry = {"type": "file", "path": file, "size": len(content), "oid": "0" * 40}
    if file.endswith(LARGE):
        digest = _sha256(content)
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return entry
