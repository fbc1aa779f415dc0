"""The front end: the Machine, the playground's page and style sheets.

The Machine, also on the page of `gpt2np explain`, which explain.py makes:

machine.js  a picture of a forward pass, with a slider from its start to its end
words.js    a sentence for each moment
stage.js    the picture on a canvas, a pure function of the pass, the moment and what is looked at
zoom.js     zooms into the picture: block, head, score, token
scenes.js   the pictures of the parts that zoom.js opens
numbers.js  the numbers as tables
pass.js     reads a description of a pass (`gpt2np.interp.description`)
view.js     helpers for elements and numbers
embedded.js starts the Machine on a page that contains the description of a pass
colors.css, style.css, machine.css: the style sheets of both

The playground (index.html, started by app.js):

state.js    what the page shows; settings, tokens, requests
prompt.js   the prompt, the examples, the model
story.js    the loop: a token is read, predicted, drawn and written
picture.js  the playground's Machine
draw.js     the ruler of probabilities and the random number
guide.js    plays the passes, with stops for the first token
press.js    the arcs and dots that can be pressed
parts.js    parts that are switched off
branches.js the branches of the texts written from one prompt
saliency.js the earlier tokens that a token came from
teach.js    teaches the model a page of text
share.js    the state in the page's address
tree.js     the texts as a tree
api.js      requests to the server

The server sends these files as they are. A self-contained page includes the
Machine's modules, joined into one. `npm run check` checks style and types.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
"""Media types of the front end's files, by suffix."""


def web_files() -> dict[str, bytes]:
    """Return the content of each file of the front end, by name."""
    return {
        file.name: file.read_bytes()
        for file in files(__name__).iterdir()
        if file.name.rpartition(".")[2] in MEDIA_TYPES
    }


def joined_modules() -> str:
    """Return embedded.js and the modules that it needs as one module, which imports nothing."""
    bodies: dict[str, str] = {}
    _collect("embedded.js", bodies)
    return _without_comments("".join(bodies.values()))


def _collect(name: str, bodies: dict[str, str]) -> None:
    """Add a module without its imports and exports, after the modules that it imports.

    As Prettier formats them, only the last line of an import ends with the module's name.
    """
    body, is_import = "", False
    for line in _read(name).splitlines(keepends=True):
        is_import = is_import or line.startswith("import ")
        if not is_import:
            body += line.removeprefix("export ")
        elif line.endswith('.js";\n'):
            imported = line.rpartition('"./')[2].removesuffix('";\n')
            if imported not in bodies:
                _collect(imported, bodies)
            is_import = False
    bodies[name] = body


def joined_styles() -> str:
    """Return the style sheets of a page of one file."""
    styles = _without_comments("".join(map(_read, ("colors.css", "style.css", "machine.css"))))
    return styles.replace(": ", ":").replace(" {", "{").replace("}\n", "}")


def _without_comments(source: str) -> str:
    """Drop comments, indentation, and ends of lines that are not needed: pages are smaller.

    No text in the sources runs over several lines, or has what begins a comment.
    """
    kept, is_comment = "", False
    for line in source.splitlines():
        code = line.partition(" // ")[0].strip()
        is_comment = is_comment or (code.startswith("/*") and "*/" not in code[:-2])
        if code and not is_comment and not code.startswith("//"):
            kept += code if code[-1] in "{(;," else f"{code}\n"
        is_comment = is_comment and not code.endswith("*/")
    return kept


def machine_page(description: Mapping[str, Any], title: str) -> str:
    """Return a page of one file that shows a description of a pass."""
    script, style = joined_modules(), joined_styles()
    return Template(_read("page.html")).substitute(
        title=html.escape(title),
        script=script,
        style=style,
        script_hash=content_hash(script),
        style_hash=content_hash(style),
        data=script_json({"pass": description}),
    )


def script_json(value: object) -> str:
    """Return JSON for a script element; no text in the JSON can end the element."""
    encoded = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded


def content_hash(content: str) -> str:
    """Return the hash of an inline script or style, as in a Content-Security-Policy."""
    digest = hashlib.sha256(content.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
