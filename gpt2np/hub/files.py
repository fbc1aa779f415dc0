"""Which files a model, or only its vocabulary, is made of."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from gpt2np.hub.weight_files import INDEX_FILE, WEIGHTS_FILE, read_index


@dataclass(frozen=True)
class Choice:
    """Something that can be had in one of several ways, each a few files; the first is preferred.

    Attributes:
        label: what to call it where none of them is there.
    """

    label: str
    ways: tuple[tuple[str, ...], ...]

    def way(self, exists: Callable[[str], bool]) -> tuple[str, ...]:
        """The first way all of whose files exist, () if there is none."""
        return next((names for names in self.ways if all(map(exists, names))), ())


WEIGHTS = Choice(WEIGHTS_FILE, ((WEIGHTS_FILE,), (INDEX_FILE,)))  # the index stands for its shards
VOCABULARY = Choice(
    "vocabulary (tokenizer.json or vocab.json + merges.txt)",
    (("tokenizer.json",), ("vocab.json", "merges.txt")),
)
CHAT_TEMPLATE = "chat_template.jinja"
VOCABULARY_EXTRAS = ("added_tokens.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class FileList:
    """The files that something is made of: all `needed`, one way of each choice, any `optional`."""

    needed: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = (VOCABULARY,)
    optional: tuple[str, ...] = VOCABULARY_EXTRAS

    @property
    def with_weights(self) -> bool:
        """Whether the weights are among them."""
        return WEIGHTS in self.choices

    def missing(self, exists: Callable[[str], bool]) -> list[str]:
        """What is missing of the files for which `exists` is true."""
        needed = [name for name in self.needed if not exists(name)]
        return needed + [choice.label for choice in self.choices if not choice.way(exists)]

    def missing_in(self, folder: Path) -> list[str]:
        """What is missing in `folder`, of sharded weights the shards too.

        Raises:
            CheckpointError: the index of the shards is damaged.
        """
        missing = self.missing(lambda name: (folder / name).is_file())
        if WEIGHTS.label in missing:
            return missing
        return missing + [name for name in self._weights_in(folder) if not (folder / name).exists()]

    def in_two_steps(self, listing: Collection[str]) -> tuple[list[str], list[str]]:
        """All of `listing` that may be of use, but for the tensors; then those that are needed."""
        needed = {*self.needed}
        for choice in self.choices:
            ways = (choice.way(listing.__contains__),) if choice is WEIGHTS else choice.ways
            needed |= {name for way in ways for name in way if name != WEIGHTS_FILE}
        optional = [name for name in self.optional if name in listing and name not in needed]
        return optional, [name for name in sorted(needed) if name in listing]

    def present_in(self, folder: Path) -> list[str]:
        """The files in `folder` that are used, or may be."""
        names = {*self.needed, *self.optional, *self._weights_in(folder)}
        names |= {name for way in VOCABULARY.ways for name in way}
        return sorted(name for name in names if (folder / name).is_file())

    def _weights_in(self, folder: Path) -> list[str]:
        return weights_in(folder) if self.with_weights else []


def weights_in(folder: Path) -> list[str]:
    """The names of the weights' files: one, or an index and the shards that it names.

    Raises:
        CheckpointError: the index is damaged.
    """
    way = WEIGHTS.way(lambda name: (folder / name).is_file())
    if way != (INDEX_FILE,):
        return list(way)
    return [INDEX_FILE, *sorted(set(read_index(folder / INDEX_FILE).values()))]


MODEL_FILES = FileList(
    needed=("config.json",),
    choices=(WEIGHTS, VOCABULARY),
    optional=(
        "generation_config.json",
        *VOCABULARY_EXTRAS,
        CHAT_TEMPLATE,
        "README.md",  # for its licence
    ),
)
VOCABULARY_FILES = FileList(optional=("config.json", *VOCABULARY_EXTRAS))  # it names the kind


COMPANIONS = (
    *(name for way in VOCABULARY.ways for name in way),
    *MODEL_FILES.optional,
    "encoder.json",
    "vocab.bpe",
    "*.tiktoken",
    "LICENSE*",
)
"""What belongs to a model beside its config and weights: names and patterns of files."""
