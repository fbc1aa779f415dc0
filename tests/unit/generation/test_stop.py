"""Stop strings: the same result wherever the pieces are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2np.generation.detokenizer import StopStrings


def run(stops, pieces):
    holder = StopStrings(stops)
    out = []
    for piece in pieces:
        out.append(holder.push(piece))
        if holder.stop_text:
            return out, holder.stop_text
    return [*out, holder.finish()], None


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


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.sets(st.integers(0, 30)),
)
def test_every_cut_gives_what_a_search_in_the_whole_gives(text, stops, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[i:j] for i, j in zip(edges, edges[1:], strict=False)]
    out, matched = run(stops, pieces)
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    joined = "".join(out)
    if not ends:
        assert (joined, matched) == (text, None)
    else:
        # The pieces decide which of several stops is found first, but no part of the first
        # complete stop may have passed.
        assert matched and len(joined) <= min(ends)[1] and text.startswith(joined + matched)


@given(text=st.text("abc", max_size=30), stop=st.text("ab", min_size=1, max_size=5))
def test_nothing_is_held_longer_than_needed(text, stop):
    holder = StopStrings([stop])
    passed = ""
    for character in text:
        passed += holder.push(character)
        if holder.stop_text:
            return
        seen = text[: len(passed) + len(holder._buffer)]
        assert passed + holder._buffer == seen
        assert stop.startswith(holder._buffer)
        assert not any(seen.endswith(stop[:n]) for n in range(len(holder._buffer) + 1, len(stop)))
