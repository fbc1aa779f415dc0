"""Formulas as MathML, which browsers show without a script from elsewhere."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def _visit(translator: Any, node: nodes.Element) -> None:
    is_block = isinstance(node, nodes.math_block)
    mathml = str(tex2mathml(node.astext().strip(), as_block=is_block))
    translator.body.append(f'<div class="math">{mathml}</div>' if is_block else mathml)
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (_visit, None), (_visit, None))
    return {"parallel_read_safe": True}
