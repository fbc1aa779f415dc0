"""No modules import each other in a circle, not even for type checkers; a name has one meaning."""

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import gpt2np

PACKAGE = Path(gpt2np.__file__).parent
FILES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imported(name, path):
    """Return the modules of the package that a file imports anywhere."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= submodules & FILES.keys() or {node.module}
    return (modules & FILES.keys()) - {name, "gpt2np"}


def test_no_circle():
    graph = {name: imported(name, path) for name, path in FILES.items()}
    assert sum(map(len, graph.values())) > 500  # the imports are found
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


# Functions of one meaning in several modules: the protocol of subcommands, and exact twins.
ONE_MEANING = {"add_arguments", "run", "linear", "matmul", "row_sums", "tanh"}


def test_a_public_name_has_one_meaning():
    modules = defaultdict(list)
    for name, path in FILES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_":
                modules[node.name].append(name)
    several = {name: places for name, places in modules.items() if len(places) > 1}
    assert {name: several[name] for name in several.keys() - ONE_MEANING} == {}
    assert several.keys() >= ONE_MEANING
