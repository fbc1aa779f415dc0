"""Draw the pictures of the documentation from real runs of the bundled model.

python docs/pictures.py            writes docs/_static/*.svg and jupyter.png (extra "test")
python docs/pictures.py lens       writes docs/_static/lens.svg
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import gpt2np
from gpt2np.constraints import text_constraint
from gpt2np.generation import Scheduler, apply_temperature, top_k_filter, top_p_filter
from gpt2np.interp import lens_table, patch_from, plot_attention
from gpt2np.kernels.array import Array
from gpt2np.model.ops import softmax

DOCS = Path(__file__).parent
WALKTHROUGH = DOCS.parent / "examples" / "walkthrough"
sys.path.insert(0, str(WALKTHROUGH))
BLUE, ORANGE, GRAY = "#0072B2", "#E69F00", "#CCCCCC"


def attention_plot(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the plot of the page Recipes."""
    trace = gpt2np.trace(lm, "The king said that the king", "blocks.1.attn.pattern")
    return plot_attention(lm, trace, layer=1)


def sampling(lm: gpt2np.LanguageModel) -> Figure:
    """Draw what temperature, top-k and top-p do to the probabilities after one prompt."""
    logits = lm.model.forward([lm.tokenizer.encode("Once upon a time there was a")])[-1]
    order = np.argsort(-logits)[:12]
    names = [lm.tokenizer.decode([token]).strip() for token in order]
    changes = {
        "temperature 1": logits,
        "temperature 0.5": apply_temperature(logits, 0.5),
        "temperature 1.5": apply_temperature(logits, 1.5),
        "top-k 5": top_k_filter(logits, 5),
        "top-p 0.3": top_p_filter(logits, 0.3),
        "temperature 0.5, top-k 5": top_k_filter(apply_temperature(logits, 0.5), 5),
    }
    figure, axes = plt.subplots(2, 3, figsize=(9, 5.4), sharex=True, sharey=True)
    for ax, (title, changed) in zip(axes.flat, changes.items(), strict=True):
        percent = 100 * softmax(changed.astype(np.float64))[order]
        ax.barh(names, percent, color=BLUE)
        for row in np.flatnonzero(percent == 0):
            ax.text(0.5, row, "cut off", va="center", color="gray", fontsize=8)
        ax.set(title=title, ylim=(11.6, -0.6))
    figure.supxlabel("probability in %", fontsize=10)
    return figure


def surprisal(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the surprisal of each word of a sentence that leads up the garden path."""
    from pictures import surprise_bars

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True)
    for ax, comma in zip(axes, ["", ","], strict=True):
        sentence = f"While the king hunted{comma} the deer ran into the wood."
        surprise_bars(ax, lm.score(sentence).by_word(), highlight="ran")
        ax.set(xlabel="surprisal in bits")
    return figure


def lens(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the logit lens: the likeliest next token after each block, and its probability."""
    trace = gpt2np.trace(lm, "Once upon a time there was a little")
    table = lens_table(lm, trace)
    tokens = lm.tokenizer.token_texts(trace.ids)
    figure, ax = plt.subplots(figsize=(9, 3.4))
    image = ax.imshow(table.probabilities[..., 0], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), token in np.ndenumerate(table.ids[..., 0]):
        color = "white" if table.probabilities[row, column, 0] > 0.6 else "black"
        text = table.texts[int(token)]
        text = text if text.isprintable() else repr(text)[1:-1]
        ax.text(column, row, text, ha="center", va="center", fontsize=9, color=color)
    ax.set_xticks(range(len(tokens)), tokens)
    ax.set_yticks(range(len(table.points)), ["embed", *map("block {}".format, range(6))])
    ax.set(xlabel="token", ylabel="guess after")
    figure.colorbar(image, label="probability")
    return figure


def merges(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the merges of a word."""
    from pictures import merge_rows

    figure, ax = plt.subplots(figsize=(6.5, 2.8))
    merge_rows(ax, lm.tokenizer.trace_merges("little")[0].steps)
    return figure


def probabilities(lm: gpt2np.LanguageModel, ids: list[int]) -> Array:
    """Return the probabilities (V,) of the next token."""
    return softmax(lm.model.forward([ids])[-1].astype(np.float64))


def constraint(lm: gpt2np.LanguageModel) -> Figure:
    """Draw which of the likeliest tokens a pattern allows, one column for each generated token."""
    prompt, pattern = "The boy met", r" (a|the|no) (fox|king|princess)"
    ids = lm.tokenizer.encode(prompt)
    vocab_size = lm.model.config.vocab_size
    token_bytes = lm.tokenizer.vocabulary.token_bytes
    state = text_constraint(token_bytes, vocab_size, lm.eos_token_ids, regex=pattern)
    new_ids = lm.generate(prompt, regex=pattern, seed=1).ids
    figure, axes = plt.subplots(1, len(new_ids), figsize=(3.1 * len(new_ids), 3.2))
    for ax, new_id in zip(np.atleast_1d(axes), new_ids, strict=True):
        allowed = state.allowed()
        ps = probabilities(lm, ids)
        order = np.argsort(-ps)
        shown = sorted({*order[:5], *order[allowed[order]][:4], new_id}, key=lambda i: -ps[i])
        names = [repr(lm.tokenizer.decode([i])).strip("'") for i in shown]
        names = [f"{name} ←" if i == new_id else name for i, name in zip(shown, names, strict=True)]
        colors = [BLUE if allowed[i] else GRAY for i in shown]
        bars = ax.barh(range(len(shown)), 100 * ps[shown], color=colors)
        ax.bar_label(bars, [f"{100 * ps[i]:.2g} %" for i in shown], padding=3, fontsize=8)
        ax.set_yticks(range(len(shown)), names)
        ax.set(ylim=(len(shown) - 0.4, -0.6), title=f"{allowed.sum():,} of {vocab_size:,} allowed")
        ax.set(xlabel=f"after “{lm.tokenizer.decode(ids)}”", xlim=(0, 130 * ps[shown].max()))
        ids, state = [*ids, new_id], state.advance(new_id)
    return figure


def tokens(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the tokens of two sentences, with their ids."""
    from pictures import token_boxes

    figure, ax = plt.subplots(figsize=(9, 1.9))
    for row, text in enumerate(
        ["Once upon a time there was a fox.", "A fox called Zoë, aged 1024."]
    ):
        ids = lm.tokenizer.encode(text)
        names = [name.replace(" ", "␣") for name in lm.tokenizer.token_texts(ids)]
        token_boxes(ax, names, 1.6 * row, labels=ids)
    ax.set(ylim=(2.6, -0.6))
    ax.set_axis_off()
    return figure


def vocabulary(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the tokens of one sentence with the first merges of a vocabulary."""
    from pictures import token_boxes

    merges = lm.tokenizer.vocabulary
    counts = [0, 30, 300, 1000, len(merges.ranks)]
    figure, ax = plt.subplots(figsize=(9, 2.6))
    for row, count in enumerate(counts):
        ranks = dict(islice(merges.ranks.items(), count))
        tokenizer = gpt2np.Tokenizer(replace(merges, ranks=ranks))
        text = "The king's daughter went into the forest."
        token_boxes(ax, tokenizer.token_texts(tokenizer.encode(text)), row)
    ax.set_yticks(range(len(counts)), [f"{count:,}" for count in counts])
    ax.set(ylim=(len(counts) - 0.4, -0.6), ylabel="merges", xticks=[])
    ax.spines[:].set_visible(False)
    return figure


def vectors(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the sum of token and position embeddings for one sentence."""
    from pictures import heat_map

    ids = lm.tokenizer.encode("The fox saw the fox")
    wte, wpe = (lm.model.weights[f"{name}.weight"] for name in ("wte", "wpe"))
    parts = {"token": wte[ids], "+ position": wpe[: len(ids)], "= x": wte[ids] + wpe[: len(ids)]}
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.2))
    for ax, (title, rows) in zip(axes, parts.items(), strict=True):
        heat_map(figure, ax, rows[:, :64], aspect="auto", cmap="RdBu", vmin=-0.6, vmax=0.6)
        ax.set(title=title, xlabel="channels 0 to 63", xticks=[])
        ax.set_yticks(range(len(ids)), lm.tokenizer.token_texts(ids))
    return figure


def cache(lm: gpt2np.LanguageModel) -> Figure:
    """Draw which tokens the passes of a text compute, without and with a KV cache."""
    ids = lm.tokenizer.encode("The little fox ran down the hill and into the wood")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for ax, kv_cache in zip(axes, (None, lm.model.new_cache()), strict=True):
        computed = np.zeros((len(ids), len(ids)))
        for step in range(len(ids)):
            start = kv_cache.length if kv_cache else 0
            new = ids[start : step + 1]
            lm.model.forward([new], [kv_cache] if kv_cache else None)
            computed[step, start : start + len(new)] = 1
        ax.imshow(computed, cmap="Blues", vmax=1.4)
        ax.set_xticks(range(len(ids)), lm.tokenizer.token_texts(ids), rotation=90)
        kind = "with a cache" if kv_cache else "without a cache"
        ax.set(title=f"{kind}: {int(computed.sum())} tokens computed", yticks=[0, 5, 10])
    axes[0].set(ylabel="pass")
    return figure


def surprise(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the surprisal of each token of a story that the model has not seen."""
    from pictures import label_tokens

    story = (WALKTHROUGH / "texts" / "the_fox_and_the_bell.txt").read_text(encoding="utf-8")
    score = lm.score(lm.tokenizer.decode(lm.tokenizer.encode(story)[:44]))
    figure, ax = plt.subplots(figsize=(9, 2.8))
    ax.bar(range(len(score.ids)), -score.logprobs / np.log(2), color="#56B4E9")
    label_tokens(ax, lm.tokenizer.token_texts(score.ids), both=False)
    ax.set(ylabel="surprise in bits", xlim=(-0.7, len(score.ids) - 0.3))
    return figure


def drafts(lm: gpt2np.LanguageModel) -> Figure:
    """Draw each pass of a text with draft tokens: accepted ones, the first rejected, its own."""
    from pictures import token_boxes

    lm = gpt2np.load("bundled", draft=str(lm.folder / "ngram_draft.safetensors"))
    stream = lm.stream("Once upon a time there was a king", temperature=0, max_new_tokens=40)
    sequence, passes = stream.sequence, []
    accept = sequence.accept

    def record(logits: Array, draft: Any = ()) -> int:
        n_accepted = accept(logits, draft)
        passes.append((list(draft), n_accepted, sequence.ids[-1]))
        return n_accepted

    sequence.accept = record
    list(stream)
    figure, ax = plt.subplots(figsize=(9, 0.26 * len(passes) + 0.7))
    for row, (draft, n_accepted, own) in enumerate(passes):
        texts = [t.replace("\n", "⏎") for t in lm.tokenizer.token_texts([*draft, own])]
        x = token_boxes(ax, texts[:n_accepted], row)
        x = token_boxes(ax, texts[-1:], row, x, ORANGE)
        token_boxes(ax, texts[n_accepted:-1], row, x + 1, GRAY)
    ax.set(ylim=(len(passes) - 0.4, -0.6), ylabel="pass", xticks=[])
    ax.set_yticks(range(len(passes)), map(str, range(1, len(passes) + 1)), fontsize=8)
    ax.spines["bottom"].set_visible(False)
    return figure


def batch(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the steps in which each of nine texts runs, in a batch of at most four."""
    scheduler = Scheduler(lm.model, max_running=4)
    prompts = {"The fox": 12, "The king": 5, "Once upon a time": 20, "The witch": 8, "A ship": 9,
               "The bell": 4, "In the wood": 12, "The queen": 6, "The wolf": 10}  # fmt: skip
    streams = [lm.stream(p, seed=1, max_new_tokens=n) for p, n in prompts.items()]
    for stream in streams:
        scheduler.add(stream.sequence)
    figure, ax = plt.subplots(figsize=(9, 3))
    step = 0
    while scheduler.busy:
        before = [len(stream.sequence.ids) for stream in streams]
        scheduler.step()
        for row, (stream, n) in enumerate(zip(streams, before, strict=True)):
            if len(stream.sequence.ids) > n:
                ax.barh(row, 0.9, left=step, height=0.7, color=BLUE if n else ORANGE)
        step += 1
    ax.set_yticks(range(len(prompts)), prompts)
    ax.set(ylim=(len(prompts) - 0.4, -0.6), xlim=(0, step), xlabel="step")
    return figure


def packages(lm: gpt2np.LanguageModel) -> Figure:
    """Draw how many modules of each package import from each other package."""
    text = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"layers = \[(.*?)\]", text, re.DOTALL)
    names = re.findall(r"\w+", layers[1]) if layers else []
    counts = np.zeros((len(names), len(names)), int)
    for path in (DOCS.parent / "gpt2np").rglob("*.py"):
        source = path.relative_to(DOCS.parent / "gpt2np").parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        for target in {module.split(".")[1] for module in modules if module.startswith("gpt2np.")}:
            if source in names and target in names and source != target:
                counts[names.index(source), names.index(target)] += 1
    figure, ax = plt.subplots(figsize=(8, 7))
    ax.imshow(np.where(counts, np.log(counts + 1.0), np.nan), cmap="Blues", vmin=-1)
    for (row, column), n in np.ndenumerate(counts):
        if n or row == column:
            color = "white" if n > 5 else "black"
            ax.text(column, row, n or "·", ha="center", va="center", fontsize=8, color=color)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="imported", ylabel="importing")
    return figure


def rounding(lm: gpt2np.LanguageModel) -> Figure:
    """Draw how far logits differ by rounding, beside the gaps that decide a greedy text."""
    story = (WALKTHROUGH / "texts" / "the_fox_and_the_bell.txt").read_text(encoding="utf-8")
    ids = lm.tokenizer.encode(story)[:512]
    whole, cache = lm.model.forward([ids]), lm.model.new_cache()
    alone = np.array([lm.model.forward([[i]], [cache])[0] for i in ids])
    in_float64 = gpt2np.load("bundled", dtype="float64").model.forward([ids])
    second, first = np.sort(whole, axis=-1)[:, -2:].T
    shown = {
        "the likeliest token's lead": first - second,
        "float32 − float64": np.abs(whole - in_float64).max(-1),
        "token by token − at once": np.abs(alone - whole).max(-1),
    }
    figure, ax = plt.subplots(figsize=(8, 3))
    bins = np.geomspace(1e-6, 100, 81)
    for (label, values), color in zip(shown.items(), (BLUE, ORANGE, "#009E73"), strict=True):
        ax.hist(np.maximum(values, 1e-6), bins, label=label, color=color, alpha=0.8)
    ax.set(xscale="log", xlabel="difference of logits", ylabel=f"of {len(ids)} tokens")
    ax.legend()
    return figure


def patching(lm: gpt2np.LanguageModel) -> Figure:
    """Draw where patches from another prompt turn "he" into "she", and what one head reads."""
    king, queen = gpt2np.trace(lm, "The king said that"), gpt2np.trace(lm, "The queen said that")
    he, she = (lm.tokenizer.encode(word)[0] for word in (" he", " she"))
    tokens = lm.tokenizer.token_texts(king.ids)
    leads = np.zeros((lm.model.config.n_layer, len(tokens)))
    for block, position in np.ndindex(leads.shape):
        hook = patch_from(queen, f"blocks.{block}.resid", positions=position)
        logits = gpt2np.trace(lm, king.ids, "logits", interventions=hook)["logits"][-1]
        leads[block, position] = logits[he] - logits[she]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    image = left.imshow(leads, cmap="Blues", aspect="auto")
    for (row, column), value in np.ndenumerate(leads):
        color = "white" if value > 2 else "black"
        left.text(column, row, f"{value:.1f}", ha="center", va="center", color=color)
    left.set(title="lead of “ he” after a patch", xlabel="patched token", ylabel="patched block")
    left.set_xticks(range(len(tokens)), tokens)
    figure.colorbar(image, ax=left)
    right.imshow(king["blocks.3.attn.pattern"][2], cmap="Blues", vmin=0, vmax=1)
    right.set(title="what head 3.2 reads", xlabel="key", ylabel="query")
    right.set_xticks(range(len(tokens)), tokens)
    right.set_yticks(range(len(tokens)), tokens)
    return figure


def engines(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the table of engines of the page Processors."""
    text = (DOCS / "internals" / "processors.md").read_text(encoding="utf-8")
    table = re.search(r"^\|.*(?:\n\|.*)*", text.partition("## Engines")[2], re.MULTILINE)
    assert table
    sections = re.split(r"^\| \*\*", table[0], flags=re.MULTILINE)
    peers = [name.strip() for name in sections[0].splitlines()[-2].split("|")[2:-1]]
    figure, axes = plt.subplots(1, len(sections) - 1, figsize=(13, 3.6), sharex=True, sharey=True)
    for ax, section in zip(axes, sections[1:], strict=True):
        for line in section.splitlines()[1:]:
            name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
            kinds = [f"{name.split()[0]} {n}" for n in re.findall(r"\d+", name)]
            for cell, marker in zip(cells, "os^D", strict=True):
                ratios = [float(n.replace("–", "nan")) for n in cell.split(" / ")]
                ax.plot(ratios, kinds, marker, color=f"C{'os^D'.index(marker)}", alpha=0.8)
        ax.axvline(1, color="black", linewidth=0.8)
        title = section.partition("|")[0].replace("**", "")
        ax.set(
            title=re.sub(r"(, see below)| 2026|, ", lambda m: "\n" if m[0] == ", " else "", title)
        )
    axes[0].invert_yaxis()
    axes[0].set(xscale="log", xticks=[0.5, 1, 2, 4], xticklabels=["½", "1", "2", "4"])
    axes[0].minorticks_off()
    figure.supxlabel("gpt2np's tokens/s ÷ the engine's", fontsize=10)
    figure.legend(axes[0].lines[:4], peers, loc="outside upper center", ncols=4)
    return figure


def jupyter(lm: gpt2np.LanguageModel) -> None:
    """Take a picture of what Jupyter shows for a few objects."""
    from playwright.sync_api import sync_playwright

    text = "There was a little fox who lived in a refrigerator."
    trace = gpt2np.trace(lm, "The king said that")
    shown = {
        f'lm.score("{text}")': lm.score(text),
        'lens_table(lm, trace(lm, "The king said that"))': lens_table(lm, trace),
    }
    style = "body { font: 14px sans-serif; margin: 12px } table { border-collapse: collapse }"
    style += "caption { text-align: left } td, th { padding: 2px 10px }"
    style += "pre { background: #f3f3f3; padding: 8px }"
    cells = (f"<pre>{code}</pre>{value._repr_html_()}" for code, value in shown.items())
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 700, "height": 100})
        page.set_content(f"<style>{style}</style>" + "".join(cells))
        page.screenshot(path=DOCS / "_static" / "jupyter.png", full_page=True)
        browser.close()


PICTURES = (attention_plot, sampling, surprisal, lens, merges, constraint, tokens, vocabulary,
            vectors, cache, surprise, drafts, batch, packages, rounding, patching,
            engines)  # fmt: skip


def main() -> None:
    """Draw the pictures whose names are given, or all of them; the same files on every run."""
    plt.style.use(WALKTHROUGH / "pictures.mplstyle")
    matplotlib.rcParams |= {
        "svg.hashsalt": "gpt2np",
        "svg.fonttype": "none",
        "savefig.facecolor": "white",
    }
    lm = gpt2np.load("bundled")
    for draw in PICTURES:
        if draw.__name__ in (sys.argv[1:] or draw.__name__):
            path = DOCS / "_static" / f"{draw.__name__}.svg"
            draw(lm).savefig(path, metadata={"Date": None})
    if "jupyter" in (sys.argv[1:] or ["jupyter"]):
        jupyter(lm)


if __name__ == "__main__":
    main()
