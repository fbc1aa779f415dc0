"""Generate text with GPT-2: python examples/forward_in_60_lines.py "Once upon a time" 40"""

import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

FOLDER = Path(__file__).parent.parent / "weights"
W = {name: w.astype(np.float32) for name, w in load_file(FOLDER / "model.safetensors").items()}
IDS: dict[str, int] = json.loads((FOLDER / "vocab.json").read_text("utf-8"))  # token → id
RANKS = {m: n for n, m in enumerate((FOLDER / "merges.txt").read_text("utf-8").splitlines())}
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # map to themselves
REST = [byte for byte in range(256) if byte not in PRINTABLE]  # map to U+0100, U+0101, …
ALPHABET = [chr(b if b in PRINTABLE else 256 + REST.index(b)) for b in range(256)]
PIECES = r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"  # ASCII only


def encode(text: str) -> list[int]:
    ids = []
    for piece in re.findall(PIECES, text, re.ASCII):
        tokens = [ALPHABET[byte] for byte in piece.encode("ascii")]
        while merges := [pair for pair in pairwise(tokens) if " ".join(pair) in RANKS]:
            i = list(pairwise(tokens)).index(min(merges, key=lambda pair: RANKS[" ".join(pair)]))
            tokens[i : i + 2] = ["".join(tokens[i : i + 2])]
        ids += [IDS[token] for token in tokens]
    return ids


def layer_norm(x: NDArray[np.floating], name: str) -> NDArray[np.floating]:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * W[f"{name}.weight"] + W[f"{name}.bias"]


def forward(ids: list[int]) -> NDArray[np.floating]:
    x = W["wte.weight"][ids] + W["wpe.weight"][: len(ids)]  # (n, C)
    for b in [f"h.{layer}" for layer in range(6)]:
        h = layer_norm(x, f"{b}.ln_1") @ W[f"{b}.attn.c_attn.weight"] + W[f"{b}.attn.c_attn.bias"]
        q, k, v = h.reshape(len(ids), 3, 4, 64).transpose(1, 2, 0, 3)  # (4 heads, n, 64) each
        scores = np.where(np.tri(len(ids)), q @ k.swapaxes(1, 2) / 8, -math.inf)  # (4, n, n)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        z = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + z @ W[f"{b}.attn.c_proj.weight"] + W[f"{b}.attn.c_proj.bias"]
        h = layer_norm(x, f"{b}.ln_2") @ W[f"{b}.mlp.c_fc.weight"] + W[f"{b}.mlp.c_fc.bias"]
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))  # GELU
        x = x + h @ W[f"{b}.mlp.c_proj.weight"] + W[f"{b}.mlp.c_proj.bias"]
    return layer_norm(x, "ln_f") @ W["wte.weight"].T  # logits (n, V)


if __name__ == "__main__":
    ids = encode(sys.argv[1])
    for _ in range(int(sys.argv[2])):
        ids.append(int(forward(ids[-512:])[-1].argmax()))
    characters = "".join(list(IDS)[token_id] for token_id in ids)
    print(bytes(map(ALPHABET.index, characters)).decode(errors="replace"))
