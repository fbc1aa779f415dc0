"""Which of several texts a text may still become: the automaton of Aho and Corasick 1975."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gpt2np.constraints.characters import Ranges, character_set, complement

_FOUND = -1


def aho_corasick(
    texts: Collection[str], count: Callable[[int], None]
) -> list[list[tuple[Ranges, int]]]:
    """Return, for each node, the sets of characters that lead to other nodes.

    A node stands for the longest beginning of one of `texts` with which the characters read so far
    end; node 0 for the empty beginning. A character that completes one of `texts` is in no set.
    No text is empty. `count` receives the amount of upcoming work, and may raise an error to stop
    it.
    """
    count(sum(map(len, texts)))
    nodes = _trie(texts)
    queue = [(0, 0)]  # a node, and the node of the longest ending that is a beginning, too
    for node, ending in queue:  # grows
        inherited = nodes[ending] if node else {}
        count(10 + len(inherited))
        found = {character: _FOUND for character, to in inherited.items() if to == _FOUND}
        edges = {**nodes[node], **found}
        queue += [(to, inherited.get(c, 0)) for c, to in nodes[node].items() if edges[c] != _FOUND]
        nodes[node] = {**inherited, **edges}
    return [_by_target(node) for node in nodes]


def _trie(texts: Collection[str]) -> list[dict[str, int]]:
    """Return, for each node of a prefix tree of `texts`, the node after a character."""
    nodes: list[dict[str, int]] = [{}]
    for text in texts:
        node = 0
        for character in text[:-1]:
            node = nodes[node].setdefault(character, len(nodes))
            if node == _FOUND:
                break  # a shorter one of the texts
            if node == len(nodes):
                nodes.append({})
        else:
            nodes[node][text[-1]] = _FOUND
    return nodes


def _by_target(steps: dict[str, int]) -> list[tuple[Ranges, int]]:
    codes: dict[int, list[tuple[int, int]]] = {}
    for character, to in steps.items():
        codes.setdefault(to, []).append((ord(character), ord(character)))
    elsewhere = complement(character_set((ord(c), ord(c)) for c in steps))
    codes.pop(_FOUND, None)
    return [(elsewhere, 0), *((character_set(ranges), to) for to, ranges in codes.items())]
