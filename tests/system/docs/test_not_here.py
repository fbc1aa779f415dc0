"""docs/guide/models.md, "Missing features": gpt2np has none of what the section says that it lacks.

A test that fails because gpt2np has learned something new asks for a change of the page.
"""

import numpy as np
import pytest
from helpers.paths import CHECKOUT
from safetensors.numpy import save_file

import gpt2np
from gpt2np.errors import SEE_MISSING_FEATURES

MODELS = (CHECKOUT / "docs" / "guide" / "models.md").read_text(encoding="utf-8")
PAGE = MODELS.partition("## Missing features")[2]


def test_adapters_are_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.safetensors").write_text("")
    with pytest.raises(gpt2np.GPT2NPError, match=f"{SEE_MISSING_FEATURES}$"):
        gpt2np.load(tmp_path)


def test_the_program_that_merges_an_adapter(tmp_path, monkeypatch):
    rng, name = np.random.default_rng(0), "h.1.attn.c_attn"
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 256), (768, 4)))
    keys = (f"base_model.model.transformer.{name}.lora_{matrix}.weight" for matrix in "AB")
    folder = tmp_path / "my-adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"lora_alpha": 8}')
    save_file(dict(zip(keys, (a, b), strict=True)), folder / "adapter_model.safetensors")
    monkeypatch.chdir(tmp_path)
    program = PAGE.partition("runs it with an adapter -->")[2].split("```")[1]
    exec(program.removeprefix("python").replace('"gpt2"', '"bundled"'), {"gpt2np": gpt2np})
    base, merged = (gpt2np.load(x).model.weights for x in ("bundled", "merged"))
    changed = {key for key in base if not np.array_equal(base[key], merged[key])}
    assert changed == {f"{name}.weight"}
    expected = base[f"{name}.weight"] + 2 * (b @ a).T  # alpha / rank
    np.testing.assert_allclose(merged[f"{name}.weight"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["model.gguf", "model.onnx", "pytorch_model.bin"])
def test_other_files_are_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(gpt2np.GPT2NPError, match=f"safetensors.*{SEE_MISSING_FEATURES}"):
        gpt2np.load(tmp_path / name)
