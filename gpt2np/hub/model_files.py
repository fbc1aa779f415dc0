"""The files of a model folder: config, weights, vocabulary, model card.

`transformers` writes the weights to `model.safetensors`. Larger models are split into shards
(`model-00001-of-00003.safetensors`, …) with an index, `model.safetensors.index.json`, whose
"weight_map" maps each tensor to its shard.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpt2np.data.files import SMALL_JSON_BYTES, read_json_object
from gpt2np.errors import CheckpointError, short_repr

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CARD_FILE = "README.md"
CHAT_TEMPLATE = "chat_template.jinja"

_MAX_FILENAME_BYTES = 255  # limit of every common file system; longer names raise an OSError
_NOT_WEIGHTS = {"training_args.bin", "optimizer.pt", "scheduler.pt"}  # pickles of trainers
_MAX_CARD_CHARACTERS = 1 << 16  # the front matter is short, and comes first
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---", re.DOTALL)
_LICENCE = re.compile(r"^(license|license_name):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Alternatives:
    """Groups of files of which one complete group is enough; the first group is preferred."""

    label: str  # name in error messages if every group is incomplete
    groups: tuple[tuple[str, ...], ...]  # of file names

    def select(self, exists: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the first group whose files all exist, or ()."""
        return next((names for names in self.groups if all(map(exists, names))), ())


WEIGHTS = Alternatives(WEIGHTS_FILE, ((WEIGHTS_FILE,), (INDEX_FILE,)))  # index: and its shards
VOCABULARY = Alternatives(
    "vocabulary (tokenizer.json or vocab.json + merges.txt)",
    (("tokenizer.json",), ("vocab.json", "merges.txt")),
)
VOCABULARY_EXTRAS = ("added_tokens.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class FileSet:
    """The files of a model or vocabulary: those that must exist, and those used if they exist."""

    required: tuple[str, ...] = ()
    alternatives: tuple[Alternatives, ...] = (VOCABULARY,)
    optional: tuple[str, ...] = VOCABULARY_EXTRAS

    @property
    def has_weights(self) -> bool:
        """Whether weights are part of the set."""
        return WEIGHTS in self.alternatives

    @property
    def names(self) -> set[str]:
        """Names of all files except the optional ones and shards."""
        groups = (group for alternatives in self.alternatives for group in alternatives.groups)
        return {*self.required, *(name for group in groups for name in group)}

    def missing(self, exists: Callable[[str], bool]) -> list[str]:
        """List the required files and alternatives that do not exist."""
        required = [name for name in self.required if not exists(name)]
        return required + [a.label for a in self.alternatives if not a.select(exists)]

    def missing_in(self, folder: Path) -> list[str]:
        """List what is missing in `folder`, including shards.

        Raises CheckpointError if the index of the shards is damaged.
        """
        missing = self.missing(lambda name: (folder / name).is_file())
        if WEIGHTS.label in missing:
            return missing
        return missing + [name for name in self._weights(folder) if not (folder / name).exists()]

    def download_steps(self, listing: Collection[str]) -> tuple[list[str], list[str]]:
        """Split the small files of a repository into two downloads: optional, then required files.

        Required files come last: a cache that contains them contains the optional files, too.
        """
        required = {*self.required}
        for alternatives in self.alternatives:
            groups = alternatives.groups
            if alternatives is WEIGHTS:
                groups = (alternatives.select(listing.__contains__),)
            required |= {name for group in groups for name in group if name != WEIGHTS_FILE}
        optional = [name for name in self.optional if name in listing and name not in required]
        return optional, [name for name in sorted(required) if name in listing]

    def existing_in(self, folder: Path) -> list[str]:
        """List the files in `folder` that belong to the set, or may."""
        names = {*self.required, *self.optional, *self._weights(folder)}
        names |= {name for group in VOCABULARY.groups for name in group}
        return sorted(name for name in names if (folder / name).is_file())

    def _weights(self, folder: Path) -> list[str]:
        return list_weight_files(folder) if self.has_weights else []


MODEL_FILES = FileSet(
    required=("config.json",),
    alternatives=(WEIGHTS, VOCABULARY),
    optional=("generation_config.json", *VOCABULARY_EXTRAS, CHAT_TEMPLATE, CARD_FILE),
)
VOCABULARY_FILES = FileSet(optional=("config.json", *VOCABULARY_EXTRAS))  # config: the model type

COMPANIONS = (
    *(name for group in VOCABULARY.groups for name in group),
    *MODEL_FILES.optional,
    "encoder.json",
    "vocab.bpe",
    "*.tiktoken",
    "LICENSE*",
)
"""Names and patterns of the files that accompany config and weights."""


def list_weight_files(folder: Path) -> list[str]:
    """List the names of the weight files: a single file, or an index and its shards.

    Raises CheckpointError if the index is damaged.
    """
    group = WEIGHTS.select(lambda name: (folder / name).is_file())
    if group != (INDEX_FILE,):
        return list(group)
    return [INDEX_FILE, *sorted(set(read_index(folder / INDEX_FILE).values()))]


def shard_name(number: int, total: int) -> str:
    """Return the file name of a shard: (1, 3) → "model-00001-of-00003.safetensors"."""
    return f"model-{number:05}-of-{total:05}.safetensors"


def read_index(path: Path) -> dict[str, str]:
    """Read an index: return tensor name → name of its shard, a file in the index's folder.

    Raises CheckpointError if the index is damaged, or names a file in another folder.
    """
    content = read_json_object(path, CheckpointError, max_bytes=SMALL_JSON_BYTES)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} is damaged: it has no weight_map; download or save the model again"
        )
    for tensor, shard in weight_map.items():
        if not _is_shard_name(shard):
            raise CheckpointError(
                f"{path}: {tensor} is mapped to {short_repr(shard)}; expected the name of a "
                ".safetensors file in the same folder"
            )
    return weight_map


def _is_shard_name(name: object) -> bool:
    """Whether a name stays in its folder on every platform, unlike a/b, a\\b and c:d."""
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and name.isprintable()
        and len(name.encode()) <= _MAX_FILENAME_BYTES
        and not set(name) & set("/\\:")
    )


def missing_weights(folder: Path) -> str:
    """Return the error message for a folder without weights in safetensors."""
    if pickles := find_pickles(file.name for file in folder.iterdir()):
        return (
            f"{folder} has its weights in {pickles[0]}, a pickle; gpt2np never opens pickles, "
            f"because they can run code; {conversion_advice(str(folder))}"
        )
    return f"{folder} has no {WEIGHTS_FILE}; a model folder needs one next to config.json"


def find_pickles(names: Iterable[str]) -> list[str]:
    """Return the file names that look like pickled weights."""
    suffixes = (".bin", ".pt", ".pth")
    pickles = [name for name in names if name.endswith(suffixes) or ".ckpt" in name]
    return sorted(set(pickles) - _NOT_WEIGHTS)


def conversion_advice(model: str, revision: str | None = None) -> str:
    """Tell how to convert a model with pickled weights, a folder or a Hub id, to safetensors."""
    arguments = f"({model!r}, revision={revision!r})" if revision else f"({model!r})"
    return (
        "if you trust the model, convert it with transformers: "
        f"AutoModelForCausalLM.from_pretrained{arguments}.save_pretrained('converted'); "
        f"AutoTokenizer.from_pretrained{arguments}.save_pretrained('converted')"
    )


def read_licence(folder: Path) -> str | None:
    """Return the licence in the front matter of a model's README.md, such as "mit", or None."""
    card = folder / CARD_FILE
    if not card.is_file():
        return None
    try:
        with card.open(encoding="utf-8-sig") as file:
            front_matter = _FRONT_MATTER.match(file.read(_MAX_CARD_CHARACTERS))
    except (OSError, ValueError):
        return None
    entries = _LICENCE.findall(front_matter[1] if front_matter else "")
    licences = {key: value.strip("\"'") for key, value in entries}
    return licences.get("license_name") or licences.get("license")
