"""Write copies of the notebooks to work in: without outputs, and ignored by git.

python examples/walkthrough/copies.py            writes my_1_text_to_ids.ipynb and so on

The copies lie beside the notebooks, so that imports and links work. Existing copies are kept.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def without_outputs(text: str) -> str:
    """Return a notebook's JSON without outputs and execution counts."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the missing copies; print the name of each."""
    for path in sorted(FOLDER.glob("[0-9]_*.ipynb")):
        copy = FOLDER / f"my_{path.name}"
        if not copy.exists():
            copy.write_text(
                without_outputs(path.read_text(encoding="utf-8")), encoding="utf-8"
            )
        print(copy)


if __name__ == "__main__":
    main()
