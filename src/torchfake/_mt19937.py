"""The state of a CPU generator, some words of its stream further on, without drawing them.

Enters: a generator's state and a number of 32-bit words. Leaves: the state after so many words,
bit for bit what drawing them would have left. Invariant: arithmetic alone; no generator moves.

The state moves linearly over GF(2), so n steps are the polynomial t^n mod phi, applied: its
coefficients say which of the next 19,937 windows of the sequence are summed (Haramoto, Matsumoto,
Nishimura, Panneton and L'Ecuyer 2008, "Efficient jump ahead for F2-linear random number
generators"). The characteristic polynomial phi is that of Matsumoto and Nishimura 1998, "Mersenne
Twister", in a form that makes reduction cheap. With B = t^623 + t^396 and a the twist,

    t (B^32 + sum of a_i B^(31 - i) over i < 31) + 1 = 0,

so polynomials are held as digits to the base B, and one of degree 39,872 is reduced by shifting
each of its 32 upper digits to the 12 places of a's bits: 0.1 ms, and 6 ms for a jump of any length,
1.5 of them where the length has been met before.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_N, _M = 624, 397
_TWIST = 0x9908B0DF
_TAPS = tuple(i for i in range(31) if _TWIST >> i & 1)
_UPPER, _LOWER, _ONE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(1)

_DIGIT = _N - 1  # the degree of B, and so what the degree of a digit stays below
_BELOW = (1 << _DIGIT) - 1
_LOW_TERM = _M - 1  # B = t^_DIGIT + t^_LOW_TERM
_TOP = 32  # digit 32 of a reduced polynomial is 0 or 1: 32 * 623 + 1 is phi's degree
_DEGREE = _TOP * _DIGIT + 1


# Polynomials over GF(2), as a list of digits to the base B, lowest first; a digit is an int.

_SPREAD = [int(f"{byte:b}", 4).to_bytes(2, "little") for byte in range(256)]
"""The bits of a byte with a zero between them: the square of a polynomial."""


def _power_of_t(exponent: int) -> list[int]:
    """t^exponent mod phi."""
    power = [1]
    for bit in f"{exponent:b}":
        squared = [0] * (2 * len(power) - 1)
        for i, digit in enumerate(power):
            squared[2 * i] = _square(digit) << int(bit)
        power = _reduced(squared)
    return power


def _square(digit: int) -> int:
    spread = [_SPREAD[byte] for byte in digit.to_bytes(_DIGIT // 8 + 1, "little")]
    return int.from_bytes(b"".join(spread), "little")


def _reduced(digits: list[int]) -> list[int]:
    _carry(digits)
    while len(digits) > _TOP + 1 or (len(digits) > _TOP and digits[_TOP] > 1):
        for i in range(len(digits) - 1, _TOP - 1, -1):
            _fold(digits, i)
        _carry(digits)
    return digits


def _fold(digits: list[int], i: int) -> None:
    """Replace digit `i`, which is not below B^32: all of it that t divides, by phi's other terms;
    a 1 that is left above B^32, by B itself one place lower.
    """
    divisible, rest = digits[i] >> 1, digits[i] & 1
    if divisible:
        for tap in _TAPS:
            digits[i - 1 - tap] ^= divisible << 1
        digits[i - _TOP] ^= divisible
    if rest and i > _TOP:
        digits[i - 1] ^= 1 << _DIGIT | 1 << _LOW_TERM
        rest = 0
    digits[i] = rest


def _carry(digits: list[int]) -> None:
    """Bring the degree of each digit below that of B, upwards; drop zeros at the top."""
    i = 0
    while i < len(digits):
        low, quotient = digits[i], 0
        while high := low >> _DIGIT:
            quotient ^= high
            low = (low & _BELOW) ^ (high << _LOW_TERM)
        digits[i] = low
        if quotient:
            if i + 1 == len(digits):
                digits.append(0)
            digits[i + 1] ^= quotient
        i += 1
    while digits and not digits[-1]:
        digits.pop()


def _coefficients(digits: list[int]) -> NDArray[np.uint8]:
    """The coefficients of a polynomial, lowest first."""
    whole = 0
    for digit in reversed(digits):
        whole = (whole << _DIGIT) ^ (whole << _LOW_TERM) ^ digit
    data = np.frombuffer(whole.to_bytes(whole.bit_length() // 8 + 1, "little"), np.uint8)
    return np.unpackbits(data, bitorder="little")[:_DEGREE]


# The sequence, and sums of its windows.


def _continued(x: Words, num_blocks: int) -> Words:
    """The sequence from the block `x` on, and `num_blocks` more of them."""
    words = np.empty((num_blocks + 1) * _N, np.uint32)
    words[:_N] = x
    for at in range(0, num_blocks * _N, _N):
        _twist(words[at : at + 2 * _N])
    return words


def _twist(pair: Words) -> None:
    """Make the second block of `pair` from the first, in pieces that need no word of their own."""
    pair[_N:-1] = _mixed(pair[: _N - 1], pair[1:_N])
    reach = _N - _M
    for start in range(0, _N - 1, reach):
        stop = min(start + reach, _N - 1)
        pair[_N + start : _N + stop] ^= pair[_M + start : _M + stop]
    last = slice(_N - 1, _N)
    pair[-1:] = _mixed(pair[last], pair[_N : _N + 1]) ^ pair[_N + _M - 1 : _N + _M]


def _mixed(first: Words, second: Words) -> Words:
    y = (first & _UPPER) | (second & _LOWER)
    mixed: Words = (y >> _ONE) ^ (y & _ONE) * np.uint32(_TWIST)
    return mixed


_SEQUENTIAL_BLOCKS = 100
"""Up to here a block after the other is as quick as a jump."""


def _blocks_later(x: Words, num_blocks: int, jump: int) -> Words:
    if jump > _SEQUENTIAL_BLOCKS:
        # A jump is right but for the low 31 bits of its first word, of which no later word is made:
        # so it is to a block before, and an ordinary step mends that.
        x, num_blocks = _jumped(x, (jump - 1) * _N), num_blocks - jump + 1
    return _continued(x, num_blocks)[-_N:]


def _jumped(x: Words, num_words: int) -> Words:
    """The sum of windows of 624 words, `_AT_ONCE` places at a time by a table of their sums: the
    method of four Russians.
    """
    words = _continued(x, -(-(_DEGREE + _AT_ONCE) // _N))
    sums = np.zeros((1 << _AT_ONCE, len(words) - _AT_ONCE + 1), np.uint32)
    for i in range(_AT_ONCE):
        end = len(words) - _AT_ONCE + 1 + i
        np.bitwise_xor(sums[: 1 << i], words[i:end], out=sums[1 << i : 2 << i])
    windows = np.lib.stride_tricks.sliding_window_view(sums.reshape(-1), _N)
    patterns, places = _patterns_of_jump(num_words)
    starts = patterns * np.intp(sums.shape[1]) + places
    total = np.zeros(_N, np.uint32)
    for i in range(0, len(starts), _IN_CACHE):
        total ^= np.bitwise_xor.reduce(windows[starts[i : i + _IN_CACHE]], axis=0)
    return total


_AT_ONCE = 5
_IN_CACHE = 512
"""So many windows are summed at once as stay in a processor's cache."""


@lru_cache(maxsize=256)
def _patterns_of_jump(num_words: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Which sums to sum, and from which word on: models draw the same lengths over and over."""
    coefficients = _coefficients(_power_of_t(num_words))
    coefficients = np.append(coefficients, np.zeros(-len(coefficients) % _AT_ONCE, np.uint8))
    weights = 1 << np.arange(_AT_ONCE)
    patterns = (coefficients.reshape(-1, _AT_ONCE) * weights).sum(1)
    used = np.flatnonzero(patterns)
    return patterns[used].astype(np.intp), used * _AT_ONCE


# Torch's state of a CPU generator: 5,056 bytes.

_LEFT = slice(8, 12)
_NEXT = slice(16, 24)
_BLOCK = slice(24, 24 + 8 * _N)
STATE_BYTES = 5056


def advanced(state: torch.Tensor, num_words: int) -> torch.Tensor:
    """The state of a CPU generator `num_words` words of 32 bits after `state`.

    Args:
        state: uint8[5056], from ``torch.Generator.get_state()``; left as it is.
        num_words: at least 0.

    Raises:
        ValueError: if `state` has another size, or `num_words` is negative.
    """
    if state.numel() != STATE_BYTES or num_words < 0:
        raise ValueError(f"cannot move a state of {state.numel()} bytes by {num_words} words")
    moved = state.clone()
    data = moved.numpy()
    left = data[_LEFT].view(np.int32)
    used = _N + 1 - int(left[0]) + num_words  # words of this block; all of them in a new generator
    if num_words == 0:
        return moved
    num_blocks = (used - 1) // _N
    if num_blocks:
        words = data[_BLOCK].view(np.uint64)
        # From wherever in a block, so many words are so many whole blocks, or one more: jumps of
        # one length are one polynomial.
        jump = num_words // _N
        words[:] = _blocks_later(words.astype(np.uint32), num_blocks, jump)
        used -= num_blocks * _N
    left[0] = _N + 1 - used
    data[_NEXT].view(np.uint64)[0] = used
    return moved
