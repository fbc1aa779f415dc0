"""The numbers on the page: arrays by name, and where each number that is shown comes from.

A number in the markup names its array and its place in it, and holds all its digits; the arrays
that the script needs travel with the page, to the bit. So whoever has the library can check every
number on the page against it.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MINUS = "\N{MINUS SIGN}"


class Numbers:
    """The arrays that a page shows, by name.

    Attributes:
        arrays: all of them, name → array.
        carried: the names of those that the page carries for its script.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.carried: list[str] = []

    def add(self, name: str, array: Array, *, carry: bool = False) -> Array:
        """Give an array a name; with `carry` the page holds all of it."""
        self.arrays[name] = array
        if carry:
            self.carried.append(name)
        return array

    def show(self, name: str, *at: int, as_: str = "4g") -> str:
        """One number of an array, as `data` element; `as_` is one of `rounded`."""
        value = self.arrays[name][at]
        place = ",".join(map(str, at))
        shown = rounded(value, as_)
        return f'<data data-of="{name}" data-at="{place}" value="{value!s}">{shown}</data>'

    def as_json(self) -> dict[str, dict[str, Any]]:
        """The carried arrays: name → dtype, shape, and the bytes (little-endian) in base64."""
        return {name: _packed(self.arrays[name]) for name in self.carried}


def _packed(array: Array) -> dict[str, Any]:
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "base64": base64.b64encode(data.tobytes()).decode("ascii"),
    }


def rounded(value: float, as_: str = "4g") -> str:
    """A number for the eye: "p" a probability, "f3" three decimals, "4g" four digits, "n" a whole
    number with its thousands apart."""
    number = float(value)
    if number == 0:
        shown = "0"
    elif as_ == "n" or (as_[0] not in "fp" and 1e4 <= abs(number) < 1e7):
        shown = f"{number:,.0f}"
    elif as_ == "p":
        shown = f"{number:.4f}" if number >= 0.0005 else f"{number:.1e}"
    else:
        shown = f"{number:.{as_[1:]}f}" if as_[0] == "f" else f"{number:#.{as_}}".rstrip(".")
    return shown.replace("e-0", "e-").replace("e+0", "e+").replace("-", _MINUS)


def script_json(content: object) -> str:
    """`content` as JSON that can stand in a script element: it can't end it, whatever is in it."""
    listed = json.dumps(content, separators=(",", ":"))
    for character in "<>&":
        listed = listed.replace(character, f"\\u{ord(character):04x}")
    return listed
