"""WikiText: pages, detokenizing, and the harness's numbers by a program of transformers."""

import math
import re

import numpy as np
import pytest
from helpers.references import load_reference, reference_logits, to_float64

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.loglikelihood import rolling_loglikelihoods, rolling_spans
from gpt2np.evaluation.perplexity import detokenize, split_pages, wikitext


@pytest.fixture(scope="module")
def text(data):
    return (data / "eval" / "wiki.test.raw").read_bytes().decode()


@pytest.fixture(scope="module")
def peer(bundled):
    return to_float64(load_reference(bundled))


class TestPages:
    def test_by_hand(self):
        fox, owl = " = Fox = \n \n A fox . \n = = Life = = \n Short . ", " = Owl = \n"
        assert split_pages(f" \n{fox}\n{owl}") == [fox, owl]
        assert split_pages(f"Before . \n{fox}") == ["Before . ", fox]
        assert split_pages("") == [""]
        assert split_pages(" = = = Deep = = = \n = A = B = \n") == [
            " = = = Deep = = = ",
            " = A = B = \n",
        ]

    def test_the_test_set(self, text):
        pages = split_pages(text)
        assert len(pages) == 62  # as many as the harness's data set has
        assert " \n" + "\n".join(pages) == text
        assert pages[0].startswith(" = Robert Boulter = \n")


class TestDetokenized:
    @pytest.mark.parametrize(
        ("page", "expected"),
        [
            ("a 1 @,@ 000 @.@ 5 m well @-@ known", "a 1,000.5 m well-known"),
            ("Yes , he said ; no : never ! Why ? So . x", "Yes, he said; no: never! Why? So. x"),
            ("( a ) [ b ] { c }", "(a) [b] {c}"),
            ("\" to be \" and ' not '", "\"to be\" and 'not'"),
            ("the foxes ' den", "the foxes' den"),
            ("the fox 's den", "the fox's den"),
            (" = = Life = = \n Short \n", " == Life ==\nShort\n"),
            ("= = = = a = = = b", "==== a === b"),
            ("5 ° C , N of here", "5°C, 1 of here"),
            ("/' 5/", "/'[0-9]/"),
        ],
    )
    def test_by_hand(self, page, expected):
        assert detokenize(page) == expected

    def test_as_the_harness(self, text):
        reason = "the harness's own function needs lm_eval (pip install gpt2np[harness])"
        theirs = pytest.importorskip("lm_eval.tasks.wikitext.preprocess_wikitext", reason=reason)
        pages = split_pages(text)
        rng = np.random.default_rng(0)
        pieces = [
            *" \n()[]{}\"'=.,:;!?°@-N/05",
            " @-@ ",
            " @,@ ",
            " @.@ ",
            " 's",
            "s '",
            "= = ",
            "a",
        ]
        pages += ["".join(rng.choice(pieces, 60)) for _ in range(1000)]
        for page in pages:
            assert detokenize(page) == theirs.wikitext_detokenizer({"page": page})
            words, size = (
                theirs.process_results({"page": page}, (0.0,)).values(),
                len(page.encode()),
            )
            assert [n for _, n in words] == [len(re.split(r"\s+", page)), size, size]


class TestRolling:
    @pytest.mark.parametrize(
        ("length", "spans"),
        [
            (1, []),
            (2, [(0, 1, 2)]),
            (5, [(0, 1, 5)]),
            (6, [(0, 1, 5), (1, 5, 6)]),
            (11, [(0, 1, 5), (4, 5, 9), (6, 9, 11)]),
        ],
    )
    def test_windows_by_hand(self, length, spans):
        """Context of 4 tokens; the last case is the example in the harness's docstring."""
        assert list(rolling_spans(length, 4)) == spans

    def test_the_same_windows_as_the_harness(self):
        reason = "the harness's own windows need lm_eval (pip install gpt2np[harness])"
        theirs = pytest.importorskip("lm_eval.utils", reason=reason)
        for length in range(40):
            for context in range(1, 12):
                ids = list(range(1, length + 1))
                expected = map(
                    theirs.make_disjoint_window,
                    theirs.get_rolling_token_windows(ids, 0, context, 1),
                )
                ours = [
                    ([0, *ids][s.start : s.first], [0, *ids][s.first : s.stop])
                    for s in rolling_spans(length + 1, context)
                ]
                assert ours == list(expected)

    @pytest.mark.parametrize(
        "length", [0, 1, pytest.param(511, marks=pytest.mark.slow), 512, 513, 1100]
    )
    def test_as_transformers_in_float64(self, lm, peer, length):
        ids = lm.tokenizer.encode("The fox went home and lay down and slept. " * 140)[:length]
        (ours,) = rolling_loglikelihoods(lm, [lm.tokenizer.decode(ids)])
        total, whole = 0.0, np.array([lm.bos_token_id, *ids])
        for start in range(0, length, 512):  # tokens start … stop - 1 of the text are predicted
            stop = min(start + 512, length)
            begin = max(0, stop - 512)
            logits = reference_logits(peer, whole[begin:stop])[start - begin :]
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            total += logits[np.arange(stop - start), whole[start + 1 : stop + 1]].sum()
        assert ours == pytest.approx(total, abs=1e-5 * (length + 1) ** 0.5)


class TestWikiText:
    def test_numbers(self, lm):
        pages = [
            " = Fox = \n \n The fox , a red @-@ brown animal , sleeps . ",
            " = Owl = \n An owl",
        ]
        result = wikitext(lm, pages)
        total = sum(rolling_loglikelihoods(lm, [detokenize(page) for page in pages]))
        words = (
            len(pages[0].split()) + 2 + len(pages[1].split()) + 1
        )  # including empty words at the ends
        size = sum(len(page.encode()) for page in pages)
        assert (result.pages, result.words, result.bytes) == (2, words, size)
        assert result.log_probability == pytest.approx(total)
        assert result.word_perplexity == pytest.approx(math.exp(-total / words))
        assert result.byte_perplexity == pytest.approx(math.exp(-total / size))
        assert result.bits_per_byte == pytest.approx(-total / size / math.log(2))

    def test_progress(self, lm):
        calls = []
        result = wikitext(lm, ["a b", "c d", "e"], lambda *call: calls.append(call))
        assert [call[:2] for call in calls] == [(1, 3), (2, 3), (3, 3)]
        assert calls[-1][2] == {"word perplexity": result.word_perplexity}

    @pytest.mark.parametrize("pages", [[], [""], [" \n "]])
    def test_no_text(self, lm, pages):
        with pytest.raises(InvalidArgumentError, match="there is no text"):
            wikitext(lm, pages)
