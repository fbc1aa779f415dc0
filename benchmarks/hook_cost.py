"""Cost of the hook points in a pass without a hook: the pass against one without hook points.

    python benchmarks/hook_cost.py [--shape tiny|124M] [--rounds 20]

The pass without hook points runs gpt2np/model/gpt2.py with every `ctx.hook(name, array, layer)`
replaced by `array`, on the same weights, in turns. Both give the same bits. `ctx.attention` calls
the hook for queries, keys and values only in a pass with a hook.
"""

import argparse
import ast
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from statistics import quantiles
from types import ModuleType
from typing import Any

import numpy as np

from gpt2np.benchmark.timing import seconds_of
from gpt2np.checkpoint.names import weight_shapes
from gpt2np.model import GPT2, GPT2Config
from gpt2np.model import gpt2 as page
from gpt2np.runtime.model_runner import ModelRunner

SHAPES = {
    "tiny": GPT2Config(vocab_size=500, n_positions=128, n_embd=64, n_layer=4, n_head=4),
    "124M": GPT2Config(),
}


class _WithoutHookPoints(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_hook = isinstance(node.func, ast.Attribute) and node.func.attr == "hook"
        return node.args[1] if is_hook else node


def gpt2_without_hook_points() -> Callable[[Any, Any], Any]:
    """Return the function `gpt2` of the page without its hook points."""
    module = ModuleType("gpt2_without_hook_points")
    tree = _WithoutHookPoints().visit(ast.parse(inspect.getsource(page)))
    exec(compile(ast.fix_missing_locations(tree), module.__name__, "exec"), module.__dict__)
    function: Callable[[Any, Any], Any] = module.gpt2
    return function


def three_models(config: GPT2Config) -> tuple[GPT2, GPT2, GPT2]:
    """Return a random model, one without hook points, and a copy; all share their weights."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(shape, np.float32) * 0.05
        for name, shape in weight_shapes(config).items()
    }
    model, without, same = (GPT2(config, arrays) for _ in range(3))
    for copy, function in ((without, gpt2_without_hook_points()), (same, page.gpt2)):
        copy.weights = model.weights
        copy._runner = ModelRunner(function, config, model.weights)
    return model, without, same


def ratios(models: Sequence[GPT2], tokens: int, rounds: int) -> list[float]:
    """Return the seconds of the first model ÷ those of the second, for passes in turns."""
    ids = np.arange(tokens) % models[0].config.vocab_size
    results = []
    for number in range(rounds + 2):
        order = models if number % 2 else models[::-1]
        seconds = {id(model): seconds_of(partial(_pass, model, ids)) for model in order}
        results.append(seconds[id(models[0])] / seconds[id(models[1])])
    return results[2:]  # the first passes pack weights and start threads


def _pass(model: GPT2, ids: Any) -> None:
    model.forward([ids], logits_indices=[len(ids) - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="size of GPT-2")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of passes")
    args = parser.parse_args()
    model, other, same = three_models(SHAPES[args.shape])
    print(f"{args.shape}, {args.rounds} pairs of passes: median (interquartile range)")
    for tokens in (1, 16, 100):
        cost, noise = (ratios((model, m), tokens, args.rounds) for m in (other, same))
        print(
            f"{tokens:>3} tokens: ÷ without hook points {_quartiles(cost)}, "
            f"÷ itself {_quartiles(noise)}"
        )


def _quartiles(values: Sequence[float]) -> str:
    low, middle, high = quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
