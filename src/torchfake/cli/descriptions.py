"""Finds what a name that does not exist may mean, among names with descriptions.

Input: a name, as it may be called in other programs, and names that exist, each with a text that
describes it. Output: the names whose own words or whose description have its words. Invariant: no
synonym is listed anywhere; the descriptions are those that users read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

_WORD = re.compile(r"\d+(?=[a-z])|[a-z]+\d*|\d+")  # "4bit" has two words, "bf16" has one

_LEAST_STEM = 3
"""Letters of a word that begins another one: ``len`` means ``length``, ``in`` not ``input``."""

_LEAST_COMMON = 7
"""Letters that two words of one stem have in common: ``quantization`` and ``quantize``."""

_HEAD = 3
"""Words with which a description says what it describes: they count twice."""

_LEAST_SHARE = 0.4
"""The share of its words that an unknown name has in common with what is found."""

_LEAST_SCORES = (0.5, 0.6)
"""Below it a word, or several, are in too many descriptions to tell them apart."""


def described_by(unknown: str, described: Mapping[str, str]) -> list[str]:
    """The names that the words of an unknown name describe best, or none.

    Rare words count more, and so do words that follow each other in both texts: each counts as the
    inverse of the number of names that have it; in a name, less if the name has other words.

    >>> described_by("max-new-tokens", {"decode": "Generate NEW tokens", "seq": "Tokens to read"})
    ['decode']
    """
    words = _words(unknown)
    names = {name: _words(name) for name in described}
    texts = {name: _words(text) for name, text in described.items()}
    scores: defaultdict[str, float] = defaultdict(float)
    for phrase in [*((word,) for word in words), *pairwise(words)]:
        named = [name for name, known in names.items() if _places(phrase, known)]
        for name in named:
            scores[name] += 2 / len(named) / len(names[name]) ** 2
        places = {name: at for name, known in texts.items() if (at := _places(phrase, known))}
        for name, at in places.items():
            scores[name] += (2 if at[0] < _HEAD else 1) / len(places)
    least = _LEAST_SHARE * len(words)
    found = {
        name: score
        for name, score in scores.items()
        if sum(bool(_places((word,), names[name] + texts[name])) for word in words) >= least
    }
    least_score = _LEAST_SCORES[len(words) > 1]
    best = max(found.values(), default=0)
    return [name for name, score in found.items() if score == best >= least_score]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _places(phrase: Sequence[str], words: list[str]) -> list[int]:
    """Where words that follow each other are in a text."""
    starts = range(len(words) - len(phrase) + 1)
    return [i for i in starts if all(map(_is_alike, phrase, words[i:]))]


def _is_alike(a: str, b: str) -> bool:
    """Whether two words are equal, or one begins the other, or both begin alike."""
    shorter, longer = sorted((a, b), key=len)
    if a == b or (len(shorter) >= _LEAST_STEM and longer.startswith(shorter)):
        return True
    return len(shorter) >= _LEAST_COMMON and longer.startswith(shorter[:_LEAST_COMMON])
