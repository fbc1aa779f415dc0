"""One server for the tests of this folder that need no options, and tabs with its playground."""

from importlib.util import find_spec

import pytest
from helpers.chat_models import CHATML, chat_model
from helpers.playground import open_tabs
from helpers.server import running_server

if not all(map(find_spec, ("fastapi", "uvicorn", "prometheus_client", "httpx"))):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    options = ("--access-log", "--allowed-host", "models.example")
    with running_server(folder, "--model", "bundled", *options) as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    import httpx

    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def chat_client(tmp_path_factory, bundled):
    """A client of a server of two models: one with a chat template, and the bundled one."""
    import httpx

    folder = tmp_path_factory.mktemp("chat")
    models = ("--model", str(chat_model(folder / "chat", bundled, CHATML)), "--model", "bundled")
    with (
        running_server(folder, *models) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture
def open_tab(browser, server):
    """open_tab(…): open the playground; fails on a console message, error or foreign request."""
    yield from open_tabs(browser, server)


@pytest.fixture(scope="class")
def open_shared_tab(browser, server):
    """Like `open_tab`, for a tab that several tests use."""
    yield from open_tabs(browser, server)
