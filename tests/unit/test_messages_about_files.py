"""Messages about damaged files: of bounded length, and no advice to delete a file behind a link."""

import json
import shutil

import pytest

from gpt2np import GPT2, CheckpointError


@pytest.fixture
def folder(tmp_path, bundled):
    shutil.copytree(bundled, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("content", [b"not weights", (1000).to_bytes(8, "little") + b"x" * 2000])
def test_damaged_weights_behind_a_link(folder, tmp_path, content):
    target = tmp_path / "passwd"
    target.write_bytes(content)
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.symlink_to(target)
    with pytest.raises(CheckpointError) as error:
        GPT2.from_folder(folder)
    assert f"delete {target}" not in str(error.value) and len(str(error.value)) < 1000


@pytest.mark.parametrize("key", ["n_embd", "activation_function", "vocab_size"])
@pytest.mark.parametrize("value", ["x" * 1_000_000, ["y"] * 100_000, {"z" * 100_000: 1}])
def test_a_long_value_in_a_config(folder, key, value):
    config = json.loads((folder / "config.json").read_text()) | {key: value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as error:
        GPT2.from_folder(folder)
    assert key in str(error.value) and len(str(error.value)) < 1000


def test_a_folder_of_checkpoints(folder):
    folder.rename(folder.with_name("checkpoint-10"))
    with pytest.raises(CheckpointError) as error:
        GPT2.from_folder(folder.parent)
    assert str(error.value).endswith(f"such as {folder.with_name('checkpoint-10')}")
