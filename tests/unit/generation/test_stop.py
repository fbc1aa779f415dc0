"""Stop strings: the same result wherever the pieces are cut."""

import pytest

from gpt2np import GenerationOptions, LanguageModel
from gpt2np.generation.detokenizer import StreamingDetokenizer


class Decoder:
    """A tokenizer and its decoder, whose token ids are their texts."""

    def streaming_decoder(self, n_skipped):
        return self

    def push(self, token_id):
        return token_id

    def finish(self):
        return ""


def run(stops, pieces, min_new_tokens=0):
    options = GenerationOptions(stop=stops, min_new_tokens=min_new_tokens)
    detokenizer = StreamingDetokenizer(Decoder(), options)
    for piece in pieces:
        detokenizer.push(piece)
        if detokenizer.stop_text:
            break
    detokenizer.finish()
    return detokenizer.pieces, detokenizer.stop_text


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "matched"),
    [
        ([], ["ab", "c"], ["ab", "c", ""], None),
        (["END"], ["some E", "N", "D more"], ["some ", "", ""], "END"),
        (["END"], ["some EN", "Dless"], ["some ", ""], "END"),
        (["END"], ["E", "NE", "N", "."], ["", "EN", "", "EN.", ""], None),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], "\n\n"),
        (["abcd", "bc"], ["abc"], ["a"], "bc"),
        (["aab"], ["aa", "a", "b"], ["", "a", ""], "aab"),
        (["x"], ["xx"], [""], "x"),
        (["long stop"], ["a lon"], ["a ", "lon"], None),
    ],
)
def test_by_hand(stops, pieces, out, matched):
    assert run(stops, pieces) == (out, matched)


@pytest.mark.parametrize(
    ("stops", "passed_over", "piece", "out", "matched"),
    [
        (["b"], "ab", "cb", "abc", "b"),
        (["\n\n"], "a\n", "\nb", "a", "\n\n"),  # ends in the second piece, as in vLLM
        (["\n\n"], "\n\n", "b", "\n\nb", None),
        (["b", "abc"], "ab", "d", "abd", None),
        (["b", "abc"], "ab", "cb", "", "abc"),
    ],
)
def test_stop_string_that_ends_in_text_passed_over_does_not_count(
    stops, passed_over, piece, out, matched
):
    pieces, stop_text = run(stops, [passed_over, piece], min_new_tokens=1)
    assert ("".join(pieces), stop_text) == (out, matched)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("kind", ["stop", "stop_token_ids"])
def test_min_new_tokens_holds_back_stops(bundled, kind, beams):
    lm = LanguageModel.load(bundled)
    options = {"temperature": 0, "num_beams": beams, "max_new_tokens": 40, "ignore_eos": True}
    texts = [" the", " a", ".", ","]
    ids = [lm.tokenizer.encode(text)[0] for text in texts]
    stops = ids if kind == "stop_token_ids" else texts
    early = lm.generate("Once upon a time", **options, **{kind: stops})
    late = lm.generate("Once upon a time", **options, **{kind: stops}, min_new_tokens=25)
    assert early.finish_reason == "stop" and len(early.ids) < 25 < len(late.ids)
    assert late.finish_reason == "stop"
    if kind == "stop_token_ids":
        assert not {*late.ids[:25]} & {*ids}
    else:
        assert late.text.startswith(early.text + early.stop_reason)
