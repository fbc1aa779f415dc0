"""Write a GPT-2 with random weights in every file format that compare.py's engines read.

    python compare_models.py FOLDER SHAPE

The weights come from transformers' save_pretrained, the vocabulary from the test data, if there is
any. reference.npz holds greedy ids and logits of transformers, with which compare.py checks every
engine.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import SHAPES, VOCABULARY
from numpy.typing import NDArray

CHECKED_TOKENS, CHECKED_STEPS = 48, 8
SPREAD = 0.02
MARGIN = 0.02  # between the two best logits: a float16 KV cache changes logits by less


def random_ids(n: int, seed: int = 0) -> list[int]:
    """Draw ids from GPT-2's vocabulary, without the end of text."""
    ids: list[int] = np.random.default_rng(seed).integers(50256, size=n).tolist()
    return ids


def make_weights(folder: Path, shape: str) -> None:
    """Write config.json, model.safetensors, the tokenizer's files and reference.npz."""
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    layers, heads, channels = SHAPES[shape]
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels)
    model = GPT2LMHeadModel(config).train(False)
    with torch.no_grad():  # also biases and layer norms: 0 and 1 would hide errors
        for parameter in model.parameters():
            parameter += SPREAD * torch.randn_like(parameter)
    model.save_pretrained(folder)
    if VOCABULARY.is_dir():
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(VOCABULARY / name, folder)
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    write_reference(folder, model)


def write_reference(folder: Path, model: Any) -> None:
    """Write two prompts with unambiguous greedy ids, the ids, and the first logits."""
    prompts: list[list[int]] = []
    answers = []
    for seed in range(1000):
        prompt = random_ids(CHECKED_TOKENS, seed)
        *answer, margin = greedy(model, prompt)
        if margin > MARGIN:
            prompts.append(prompt)
            answers.append(answer)
        if len(prompts) == 2:
            break
    ids, logits = zip(*answers, strict=True)
    np.savez(folder / "reference.npz", prompts=prompts, ids=ids, logits=logits)


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], NDArray[np.float32], float]:
    """Return greedy ids, the logits of the first, and the smallest margin of a choice."""
    import torch

    ids, logits, margins = list(prompt), [], []
    for _ in range(CHECKED_STEPS):
        with torch.no_grad():
            logits.append(model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1])
        best = logits[-1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], logits[0].numpy(), min(margins)


def read_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Return name → array, names without "transformer."."""
    from safetensors.numpy import load_file

    weights = load_file(folder / "model.safetensors")
    return {name.removeprefix("transformer."): array for name, array in weights.items()}


GGUF_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def make_gguf(folder: Path, path: Path) -> None:
    """Write a GGUF file: float32, matrices [out, in], the unembedding tied."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_gguf_vocabulary(writer, folder)
    for name, array in read_weights(folder).items():
        *front, part, kind = name.split(".") if name.startswith("h.") else ("", *name.split("."))
        prefix, module = (
            (f"blk.{front[1]}.", ".".join([*front[2:], part])) if front[0] else ("", part)
        )
        transposed = array.T if ".c_" in name and array.ndim == 2 else array
        contiguous = np.ascontiguousarray(transposed, np.float32)
        writer.add_tensor(f"{prefix}{GGUF_NAMES[module]}.{kind}", contiguous)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_gguf_vocabulary(writer: Any, folder: Path) -> None:
    import gguf

    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    types = [gguf.TokenType.NORMAL] * (len(vocabulary) - 1) + [gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types(types)
    writer.add_token_merges([line for line in lines if line and not line.startswith("#version")])
    writer.add_bos_token_id(len(vocabulary) - 1)
    writer.add_eos_token_id(len(vocabulary) - 1)


class OnnxGraph:
    """Nodes and constants of an ONNX graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(
        self, operator: str, *inputs: str, outputs: str | list[str] = "", **options: Any
    ) -> str:
        """Add a node; return the name of its first output."""
        from onnx import helper

        names = [outputs] if isinstance(outputs, str) else outputs
        names = [name or f"x{len(self.nodes)}" for name in names]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **options))
        return names[0]


def make_onnx(folder: Path) -> None:
    """Write onnx/model.onnx, with the KV cache as inputs and outputs, and weights in a second file.

    The graph consists of standard ONNX operators, with one Attention (opset 23) per block.
    """
    import onnx
    from onnx import TensorProto, helper

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    graph, weights = OnnxGraph(), read_weights(folder)
    caches = _add_onnx_layers(graph, config, {n: graph.constant(n, w) for n, w in weights.items()})
    unembedding = graph.constant("unembedding", weights["wte.weight"].T)
    graph.add("MatMul", "final", unembedding, outputs="logits")
    int64 = TensorProto.INT64
    ids = helper.make_tensor_value_info("ids", int64, ["S", "n"])
    positions = helper.make_tensor_value_info("positions", int64, ["n"])
    rows = helper.make_tensor_value_info("rows", int64, ["r"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["S", "r", "V"])
    heads, size = config["n_head"], config["n_embd"] // config["n_head"]

    def cache(name: str, length: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["S", heads, length, size])

    past = [cache(f"past_{name}", "T") for name in caches]
    present = [cache(f"present_{name}", "U") for name in caches]
    onnx_graph = helper.make_graph(
        graph.nodes, "gpt2", [ids, positions, rows, *past], [logits, *present], graph.constants
    )
    model = helper.make_model(
        onnx_graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    (folder / "onnx").mkdir(exist_ok=True)
    path = folder / "onnx" / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="model.data")


def _add_onnx_layers(graph: OnnxGraph, config: dict[str, Any], w: dict[str, str]) -> list[str]:
    """Add the nodes from "ids" to "final"; return the names of the caches."""
    channels, epsilon = config["n_embd"], config["layer_norm_epsilon"]
    split = graph.constant("split", np.array([channels] * 3))
    caches = []

    def norm(x: str, name: str) -> str:
        weight, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        return graph.add("LayerNormalization", x, weight, bias, epsilon=epsilon)

    def linear(x: str, name: str) -> str:
        return graph.add("Add", graph.add("MatMul", x, w[f"{name}.weight"]), w[f"{name}.bias"])

    tokens = graph.add("Gather", w["wte.weight"], "ids")
    x = graph.add("Add", tokens, graph.add("Gather", w["wpe.weight"], "positions"))
    for layer in range(config["n_layer"]):
        h, key, value = f"h.{layer}", f"key_{layer}", f"value_{layer}"
        caches += [key, value]
        qkv = [f"{h}.{part}" for part in "qkv"]
        graph.add(
            "Split", linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn"), split, outputs=qkv, axis=2
        )
        z = graph.add(
            "Attention",
            *(*qkv, "", f"past_{key}", f"past_{value}"),
            outputs=["", f"present_{key}", f"present_{value}"],
            is_causal=1,
            q_num_heads=config["n_head"],
            kv_num_heads=config["n_head"],
        )
        x = graph.add("Add", x, linear(z, f"{h}.attn.c_proj"))
        wide = linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")
        wide = graph.add("Gelu", wide, approximate="tanh")
        x = graph.add("Add", x, linear(wide, f"{h}.mlp.c_proj"))
    selected = graph.add("Gather", x, "rows", axis=1)
    graph.add("Identity", norm(selected, "ln_f"), outputs="final")
    return caches


if __name__ == "__main__":
    make_weights(Path(sys.argv[1]), sys.argv[2])
