"""The walkthrough's notebooks reproduce their outputs; their exercises have solutions."""

import base64
import inspect
import os
import re
import threading
import time
from importlib import import_module

import nbformat
import pytest
from checks import CHECKERS, NOTEBOOKS, check
from helpers.paths import CHECKOUT
from jupyter_client.channels import HBChannel
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

WALKTHROUGH = CHECKOUT / "examples" / "walkthrough"
PATHS = sorted(WALKTHROUGH.glob("[0-9]_*.ipynb"))
TIMEOUT = 300  # seconds; at most 15 on an idle machine
NOT_COMPARED = "not-compared"  # tag of cells that measure time
# No test compares pictures; their layout, their ticks and their resolution take half the time.
PLAIN_PICTURES = """%reset -f
%matplotlib inline
%config InlineBackend.print_figure_kwargs = {"bbox_inches": None, "dpi": 20}
import matplotlib.axes
matplotlib.figure.Figure.set_layout_engine = matplotlib.axis.Axis.draw = lambda *_, **__: None
matplotlib.axes.Axes._update_title_position = matplotlib.axis.Axis.draw
"""
REFRESH = "run the command in examples/walkthrough/README.md to update the outputs"


def cells(path, kind):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def printed(cell):
    """Return the text that a cell printed or returned."""
    return "".join(
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in cell.outputs
        if output.output_type != "display_data" and output.get("name") != "stderr"
    )


def pictures(cell):
    return [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]


def exercises(path):
    """Return the source of each exercise's cell, by the name of the exercise."""
    sources = [cell.source for cell in cells(path, "code")]
    return {name: s for s in sources for name in re.findall(r"^check\((\w+)\)$", s, re.MULTILINE)}


ALL_EXERCISES = {name: source for path in PATHS for name, source in exercises(path).items()}


@pytest.fixture(scope="module")
def kernel():
    """A kernel for all notebooks, since its start and its imports take two seconds."""
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # other tests use the other processors
    manager = KernelManager()
    manager.start_kernel(cwd=str(WALKTHROUGH), env=variables)
    yield manager
    manager.shutdown_kernel(now=True)
    # A heartbeat would open sockets in a later test that limits open files.
    assert not any(isinstance(thread, HBChannel) for thread in threading.enumerate())


def execute(path, kernel):
    """Execute a notebook without the names of others; return new outputs, and the seconds taken."""
    fresh = nbformat.read(path, 4)
    fresh.cells.insert(0, nbformat.v4.new_code_cell(PLAIN_PICTURES))
    start = time.perf_counter()
    client = NotebookClient(fresh, km=kernel, timeout=TIMEOUT)
    try:
        client.execute()
    finally:
        if client.kc:
            client.kc.stop_channels()  # nbclient does so only for kernels of its own
    del fresh.cells[0]
    return fresh, time.perf_counter() - start


QUICK = "45"  # numbers of the notebooks that print functions of the model

RUNS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem[0] not in QUICK))
    for path in PATHS
]


@pytest.mark.parametrize("path", RUNS)
def test_a_fresh_run_says_the_same(path, kernel):
    fresh, seconds = execute(path, kernel)
    assert seconds < TIMEOUT
    new_cells = [cell for cell in fresh.cells if cell.cell_type == "code"]
    for stored, new in zip(cells(path, "code"), new_cells, strict=True):
        assert len(pictures(stored)) == len(pictures(new))
        if NOT_COMPARED not in stored.metadata.get("tags", []):
            assert printed(stored) == printed(new), REFRESH


def test_there_are_ten():
    assert [path.stem[:2] for path in PATHS] == [f"{n}_" for n in range(10)]
    assert [path.stem[2:] for path in PATHS] == [m.__name__.split(".")[-1] for m in NOTEBOOKS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_stored_as_it_should_be(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), REFRESH
    for cell in code:
        assert not [
            o for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"
        ]
        for picture in pictures(cell):
            assert len(base64.b64decode(picture)) <= 60_000
    assert path.stat().st_size < 400_000
    assert str(CHECKOUT) not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_links_lead_to_what_they_name(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    links = re.findall(r"\[([^\]]+)\]\(([^)#:]+)\)", text)
    assert len([target for _, target in links if "gpt2np/" in target]) >= 2
    for name, target in links:
        file = WALKTHROUGH / target
        assert file.exists(), target
        if name.startswith("`") and file.suffix == ".py":
            word = name.strip("`").split(".")[-1]
            assert re.search(rf"\b{word}\b", file.read_text(encoding="utf-8")), (name, target)


def test_every_exercise_has_a_checker_and_a_solution():
    assert ALL_EXERCISES.keys() == CHECKERS.keys()
    assert all(2 <= len(exercises(path)) <= 4 for path in PATHS)


@pytest.mark.parametrize("name", ALL_EXERCISES)
def test_the_stub_fails_and_the_solution_passes(name, capsys):
    namespace = {"check": check}
    exec(ALL_EXERCISES[name], namespace)
    assert re.fullmatch(rf"{name}: not yet\.\n", capsys.readouterr().out)
    module = CHECKERS[name].__module__.split(".")[-1]
    solution = getattr(import_module(f"solutions.{module}"), name)
    stub = inspect.signature(namespace[name])
    assert list(stub.parameters) == list(inspect.signature(solution).parameters)
    check(solution)
    assert capsys.readouterr().out == f"{name}: solved.\n"
