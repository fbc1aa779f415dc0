"""GPT-2's weights in the structure that the forward pass reads: blocks, layers, panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.names import LM_HEAD, WTE, weight_shapes
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import halves_long_sums
from gpt2np.kernels.exact import ExactLinear
from gpt2np.kernels.linear import PackedHeads
from gpt2np.kernels.packed_matrix import PackedMatrix
from gpt2np.model.ops import ACTIVATIONS, layer_norm
from gpt2np.runtime.packed_weights import PackedWeights, Packing, WeightSource, quantized_nbytes

_PANEL_WIDTH = 64  # outputs
_MAX_GROUP = 192  # inputs of one panel; MKL, too, sums so many at once
_MAX_UNDIVIDED_SUM = 320  # products; GEMM cuts longer sums (`halves_long_sums`)


@dataclass(frozen=True)
class TokenEmbedding:
    """The token embeddings (V, C); indexing by token ids reads rows of the packed matrix."""

    gather_rows: Callable[[IntArray], Array]

    def __getitem__(self, token_ids: IntArray) -> Array:
        """Return the embeddings (N, C) of token ids (N,)."""
        return self.gather_rows(token_ids)


@dataclass(frozen=True)
class BlockWeights:
    """The weights of one transformer block, and its settings from the config.

    Attributes:
        layer: the block's index.
        attention_scale: the factor of the attention scores, by default 1 / √D.
        activation: the MLP's elementwise activation function.
    """

    layer: int
    ln_1: Callable[[Array], Array]
    c_attn: PackedHeads
    attn_c_proj: PackedMatrix
    ln_2: Callable[[Array], Array]
    c_fc: PackedMatrix
    mlp_c_proj: PackedMatrix
    attention_scale: float
    activation: Callable[[Array], Array]


@dataclass(frozen=True)
class ModelWeights:
    """All weights of one forward pass.

    Attributes:
        wte: (V, C), the token embeddings.
        wpe: (n_positions, C), the position embeddings.
        blocks: the weights of each block.
        ln_f: the final layer norm.
        lm_head: the unembedding (C, V), whole or as an iterable over slices of columns.
    """

    wte: Array | TokenEmbedding
    wpe: Array
    blocks: Iterable[BlockWeights]
    ln_f: Callable[[Array], Array]
    lm_head: PackedMatrix | Iterable[PackedMatrix]

    @property
    def max_width(self) -> int:
        """The largest number of outputs of attention or of a linear layer, padding included."""
        block = next(iter(self.blocks))
        assert isinstance(self.lm_head, PackedMatrix)
        layers = block.attn_c_proj, block.c_fc, block.mlp_c_proj, self.lm_head
        _, _, n_head, _, head_size = block.c_attn.panels.shape
        widths = (w.data.shape[1] * w.data.shape[3] for w in layers)
        return int(max(n_head * head_size, *widths))


def pack_weights(
    config: GPT2Config,
    arrays: Mapping[str, Array],
    *,
    quantize: bool = False,
    exact: bool = False,
) -> PackedWeights:
    """Wrap a model's weights, named as in `weight_shapes`, in a mapping that packs them on demand.

    With `quantize`, the matrices are packed as int8 (`PackedMatrix`). With `exact`, the weights are
    float64, and the matrices are cut into slices at the first pass (`ExactLinear`).

    Raises:
        InvalidArgumentError: an array is missing, or does not have the shape that the config
            demands.
    """
    shapes = weight_shapes(config)
    for name, shape in shapes.items():
        if name not in arrays:
            raise InvalidArgumentError(f"the weights lack {name}")
        if arrays[name].shape != shape:
            raise InvalidArgumentError(f"{name} has shape {arrays[name].shape}, expected {shape}")
    head = LM_HEAD if LM_HEAD in arrays else WTE
    given = {name: arrays[name] for name in dict.fromkeys((*shapes, head))}
    if exact:
        return PackedWeights(given, np.dtype(np.float64), {}, partial(_arrange_exact, config, head))
    packings, arrange = _packings(config, given, quantize), partial(_arrange, config, head)
    return PackedWeights(given, arrays[WTE].dtype, packings, arrange, quantize=quantize)


def int8_nbytes(config: GPT2Config, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the bytes of a model's weights of these shapes, with its matrices as int8."""
    return quantized_nbytes(shapes, _packings(config, shapes, quantize=True))


def _kind(name: str) -> str:
    """Remove the block's prefix from a weight's name: h.3.ln_1.bias → ln_1.bias."""
    return name.split(".", 2)[-1] if name.startswith("h.") else name


def _packings(config: GPT2Config, names: Iterable[str], quantize: bool) -> dict[str, Packing]:
    """Return how each matrix among the names is cut into panels; a bias is cut like its matrix.

    A panel of c_attn computes the queries, keys or values of one head. A product is summed over
    groups of inputs (split-K): short sums round less (docs/internals/accuracy.md). Integers are the
    same on every machine, so their groups are, too.
    """
    c, f = _group_size(config.n_embd), _group_size(config.n_inner)
    if halves_long_sums() and not quantize:
        c, f = _joined_groups(config.n_embd, c), _joined_groups(config.n_inner, f)
    d = config.n_embd // config.n_head
    unembedding = Packing((c, _PANEL_WIDTH), is_transposed=True)
    packings = {WTE: unembedding, LM_HEAD: unembedding}
    for layer, group, width in (
        ("attn.c_attn", c, d),
        ("attn.c_proj", c, _PANEL_WIDTH),
        ("mlp.c_fc", c, _PANEL_WIDTH),
        ("mlp.c_proj", f, _PANEL_WIDTH),
    ):
        packings[f"{layer}.weight"] = Packing((group, width))
        packings[f"{layer}.bias"] = Packing((1, width))
    return {name: packings[kind] for name in names if (kind := _kind(name)) in packings}


def _group_size(n: int) -> int:
    """Return the number of inputs per split-K group, for n inputs; preferably a divisor of n."""
    groups = -(-n // _MAX_GROUP)
    even = [i for i in range(groups, 2 * groups + 1) if n % i == 0]
    return n // even[0] if even else -(-n // groups)


def _joined_groups(n: int, size: int) -> int:
    """Return the inputs of two groups if they divide n and GEMM halves them, else of one group."""
    return 2 * size if 2 * size > _MAX_UNDIVIDED_SUM and n % (2 * size) == 0 else size


def arrange_blocks(
    config: GPT2Config,
    norm: Callable[[str], Callable[[Array], Array]],
    linear: Callable[[str], Any],
    heads: Callable[[str], Any] | None = None,
) -> Iterator[BlockWeights]:
    """Yield the weights of each block.

    `norm` and `linear` return the layer norm or linear layer of a name, such as "h.0.ln_1"; `heads`
    the layer that computes queries, keys and values, by default as `linear`.
    """
    for i in range(config.n_layer):
        yield BlockWeights(
            layer=i,
            ln_1=norm(f"h.{i}.ln_1"),
            c_attn=(heads or linear)(f"h.{i}.attn.c_attn"),
            attn_c_proj=linear(f"h.{i}.attn.c_proj"),
            ln_2=norm(f"h.{i}.ln_2"),
            c_fc=linear(f"h.{i}.mlp.c_fc"),
            mlp_c_proj=linear(f"h.{i}.mlp.c_proj"),
            attention_scale=config.attention_scale(i),
            activation=ACTIVATIONS[config.activation_function],
        )


def _arrange(config: GPT2Config, head: str, source: WeightSource, is_packed: bool) -> ModelWeights:
    def linear(name: str) -> PackedMatrix:
        weight, bias = (source.packed(f"{name}.{kind}") for kind in ("weight", "bias"))
        return replace(weight, bias=bias.data.reshape(-1))

    def heads(name: str) -> PackedHeads:
        source.prefetch(name.removesuffix("attn.c_attn"))  # the whole block
        weight, bias = (source.packed(f"{name}.{kind}") for kind in ("weight", "bias"))
        groups, _, *panel = weight.data.shape
        return PackedHeads(
            weight.data.reshape(groups, 3, config.n_head, *panel),
            bias.data.reshape(3, config.n_head, 1, -1),
            None if weight.scale is None else weight.scale.reshape(groups, 3, config.n_head, -1),
        )

    norm = partial(_layer_norm, config, source)
    blocks = arrange_blocks(config, norm, linear, heads)
    lm_head = source.packed_parts(head)
    return ModelWeights(
        TokenEmbedding(partial(source.gather_rows, WTE)),
        source.arrays["wpe.weight"],
        list(blocks) if is_packed else blocks,
        norm("ln_f"),
        next(lm_head) if is_packed else lm_head,
    )


def _arrange_exact(config: GPT2Config, head: str, source: WeightSource, _: bool) -> ModelWeights:
    arrays, norm = source.arrays, partial(_layer_norm, config, source)

    def linear(name: str) -> Any:  # an ExactLinear in the place of a PackedMatrix
        return ExactLinear.of(arrays[f"{name}.weight"].T, arrays[f"{name}.bias"])

    blocks = list(arrange_blocks(config, norm, linear))
    lm_head: Any = ExactLinear.of(arrays[head])
    return ModelWeights(arrays[WTE], arrays["wpe.weight"], blocks, norm("ln_f"), lm_head)


def _layer_norm(config: GPT2Config, source: WeightSource, name: str) -> Callable[[Array], Array]:
    weight, bias = source.arrays[f"{name}.weight"], source.arrays[f"{name}.bias"]
    return partial(layer_norm, weight=weight, bias=bias, epsilon=config.layer_norm_epsilon)
