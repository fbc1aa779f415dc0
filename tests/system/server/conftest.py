"""One server for the tests of this folder that need no options."""

from importlib.util import find_spec

import pytest
from helpers.server import running_server

if not all(map(find_spec, ("fastapi", "uvicorn", "prometheus_client", "httpx"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--model", "bundled", "--access-log") as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    import httpx

    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
