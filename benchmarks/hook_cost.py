"""What the hook's points cost a pass that nobody looks into: the pass against one without them.

    python benchmarks/hook_cost.py [--shape tiny|124M] [--rounds 20]

The other pass is gpt2np/model/gpt2.py with every `step.at(name, array)` replaced by `array`, and
every `step.show(name, array)` taken out, on the same weights, in turns. Both give the same bits.
"""

import argparse
import ast
import inspect
from collections.abc import Sequence
from statistics import quantiles
from types import ModuleType
from typing import Any

import numpy as np

from gpt2np.benchmark.timing import seconds_of
from gpt2np.checkpoint.names import weight_shapes
from gpt2np.model import GPT2, GPT2Config
from gpt2np.model import model as gpt2

SHAPES = {
    "tiny": GPT2Config(vocab_size=500, n_positions=128, n_embd=64, n_layer=4, n_head=4),
    "124M": GPT2Config(),
}


class _WithoutPoints(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[1] if _name(node.func) == "at" else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        shows = isinstance(node.value, ast.Call) and _name(node.value.func) == "show"
        return ast.copy_location(ast.Pass(), node) if shows else node


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def without_points() -> type[GPT2]:
    """GPT2 as it would be if there were no hook."""
    module = ModuleType("gpt2_without_points")
    tree = _WithoutPoints().visit(ast.parse(inspect.getsource(gpt2)))
    exec(compile(ast.fix_missing_locations(tree), module.__name__, "exec"), module.__dict__)
    found: type[GPT2] = module.GPT2
    return found


def three_models(config: GPT2Config) -> tuple[GPT2, GPT2, GPT2]:
    """A model with random weights; one without points, and one like it, which share them."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(shape, np.float32) * 0.05
        for name, shape in weight_shapes(config).items()
    }
    model, other, same = (kind(config, arrays) for kind in (GPT2, without_points(), GPT2))
    other.weights = same.weights = model.weights
    return model, other, same


def ratios(models: Sequence[GPT2], tokens: int, rounds: int) -> list[float]:
    """Seconds of the first model ÷ seconds of the second, of passes one right after the other."""
    ids = np.arange(tokens) % models[0].config.vocab_size
    found = []
    for number in range(rounds + 2):
        order = models if number % 2 else models[::-1]
        seconds = {id(model): seconds_of(lambda m=model: _pass(m, ids)) for model in order}  # type: ignore[misc]
        found.append(seconds[id(models[0])] / seconds[id(models[1])])
    return found[2:]  # at first, weights are laid out and threads started


def _pass(model: GPT2, ids: Any) -> None:
    model.forward([ids], logits_indices=[len(ids) - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    model, other, same = three_models(SHAPES[args.shape])
    print(f"{args.shape}, {args.rounds} pairs of passes: median (middle half)")
    for tokens in (1, 16, 100):
        cost, noise = (ratios((model, m), tokens, args.rounds) for m in (other, same))
        print(f"{tokens:>3} tokens: ÷ without points {_middle(cost)}, ÷ itself {_middle(noise)}")


def _middle(values: Sequence[float]) -> str:
    low, middle, high = quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
