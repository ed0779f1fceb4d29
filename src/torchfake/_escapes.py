"""Text of unknown origin, made safe to print: names in files and modules are anybody's.

Input: text. Output: the same, with an escape for each character that is not printed as itself.
Invariant: no control character, no change of direction and no surrogate gets through, so nothing
that is shown can move a cursor, imitate another line, or fail to be encoded.
"""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with escapes for what ``str.isprintable`` does not count as printable.

    Args:
        text: any.
        keep: characters to leave, such as line breaks in a text of several lines.

    >>> printable("a\x1b[31m\u202e\n")
    'a\\x1b[31m\\u202e\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
