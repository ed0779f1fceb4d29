"""Jump ahead of MT19937: the state of a CPU generator any number of words later.

Input: a generator's state, and a number of words (32-bit outputs). Output: the state after so many
words, bit for bit the one that drawing them would leave. Invariant: arithmetic alone; no generator
is moved.

The state transition is linear over GF(2), so n steps apply the jump polynomial t^n mod phi: its
coefficients select which of the next 19,937 windows of the sequence are summed (Haramoto,
Matsumoto, Nishimura, Panneton and L'Ecuyer 2008, "Efficient jump ahead for F2-linear random number
generators"). The characteristic polynomial phi is that of Matsumoto and Nishimura 1998, "Mersenne
Twister", in a form that makes reduction cheap. With B = t^623 + t^396 and a the twist,

    t (B^32 + sum of a_i B^(31 - i) over i < 31) + 1 = 0,

so polynomials are represented by digits to the base B. One of degree 39,872 is reduced by adding
each of its 32 upper digits to the 12 digits that the twist a selects, which takes 0.1 ms. A jump
of any length takes 6 ms, or 1.5 ms if its length was met before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchfake._core import memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]

_N, _M = 624, 397
_TWIST = 0x9908B0DF
_TAPS = tuple(i for i in range(31) if _TWIST >> i & 1)
_UPPER, _LOWER, _ONE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(1)

_DIGIT_BITS = _N - 1  # the degree of B; a digit has a lower degree
_DIGIT_MASK = (1 << _DIGIT_BITS) - 1
_LOW_TERM = _M - 1  # B = t^_DIGIT_BITS + t^_LOW_TERM
_NUM_DIGITS = 32  # digit 32 of a reduced polynomial is 0 or 1: 32 * 623 + 1 is phi's degree
_DEGREE = _NUM_DIGITS * _DIGIT_BITS + 1


# Polynomials over GF(2): lists of digits to the base B, lowest first. A digit is an int whose bits
# are the coefficients of a polynomial of degree below 623.

_SQUARED_BYTES = [int(f"{byte:b}", 4).to_bytes(2, "little") for byte in range(256)]
"""For each byte, its bits with a zero between any two: the square of the polynomial."""


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
    spread = [_SQUARED_BYTES[byte] for byte in digit.to_bytes(_DIGIT_BITS // 8 + 1, "little")]
    return int.from_bytes(b"".join(spread), "little")


def _reduced(digits: list[int]) -> list[int]:
    _carry(digits)
    while len(digits) > _NUM_DIGITS + 1 or (len(digits) > _NUM_DIGITS and digits[_NUM_DIGITS] > 1):
        for i in range(len(digits) - 1, _NUM_DIGITS - 1, -1):
            _reduce_digit(digits, i)
        _carry(digits)
    return digits


def _reduce_digit(digits: list[int], i: int) -> None:
    """Remove digit `i`, of B^32 or a higher power: its part that t divides is replaced by the other
    terms of phi; a constant term that is left, above B^32, by B one digit lower.
    """
    divisible, rest = digits[i] >> 1, digits[i] & 1
    if divisible:
        for tap in _TAPS:
            digits[i - 1 - tap] ^= divisible << 1
        digits[i - _NUM_DIGITS] ^= divisible
    if rest and i > _NUM_DIGITS:
        digits[i - 1] ^= 1 << _DIGIT_BITS | 1 << _LOW_TERM
        rest = 0
    digits[i] = rest


def _carry(digits: list[int]) -> None:
    """Carry upwards until all digits have a degree below that of B; drop upper digits of zero."""
    i = 0
    while i < len(digits):
        low, quotient = digits[i], 0
        while high := low >> _DIGIT_BITS:
            quotient ^= high
            low = (low & _DIGIT_MASK) ^ (high << _LOW_TERM)
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
        whole = (whole << _DIGIT_BITS) ^ (whole << _LOW_TERM) ^ digit
    data = np.frombuffer(whole.to_bytes(whole.bit_length() // 8 + 1, "little"), np.uint8)
    return np.unpackbits(data, bitorder="little")[:_DEGREE]


# The sequence of words, in blocks of 624, and sums of its windows.


def _generate_blocks(x: Words, num_blocks: int) -> Words:
    """The block `x` and the `num_blocks` blocks that follow it."""
    words = np.empty((num_blocks + 1) * _N, np.uint32)
    words[:_N] = x
    for at in range(0, num_blocks * _N, _N):
        _twist(words[at : at + 2 * _N])
    return words


def _twist(pair: Words) -> None:
    """Compute the second block of `pair` from the first, in parts that do not read themselves."""
    pair[_N:-1] = _mix(pair[: _N - 1], pair[1:_N])
    reach = _N - _M
    for start in range(0, _N - 1, reach):
        stop = min(start + reach, _N - 1)
        pair[_N + start : _N + stop] ^= pair[_M + start : _M + stop]
    last = slice(_N - 1, _N)
    pair[-1:] = _mix(pair[last], pair[_N : _N + 1]) ^ pair[_N + _M - 1 : _N + _M]


def _mix(first: Words, second: Words) -> Words:
    y = (first & _UPPER) | (second & _LOWER)
    mixed: Words = (y >> _ONE) ^ (y & _ONE) * np.uint32(_TWIST)
    return mixed


_SEQUENTIAL_BLOCKS = 100
"""Up to this number of blocks, computing all of them is as quick as a jump."""


def _block_after(x: Words, num_blocks: int, jump: int) -> Words:
    """The block `num_blocks` after `x`, by a jump of `jump` blocks at most."""
    if jump > _SEQUENTIAL_BLOCKS:
        # The result of a jump has wrong low 31 bits in its first word, on which no later word
        # depends: so the jump is one block shorter, and that block is computed by a twist.
        x, num_blocks = _jump(x, (jump - 1) * _N), num_blocks - jump + 1
    return _generate_blocks(x, num_blocks)[-_N:]


def _jump(x: Words, num_words: int) -> Words:
    """The block that begins `num_words` after `x`: the sum of the windows of 624 words that the
    jump polynomial selects.

    A table has all sums of `_TABLE_BITS` adjacent windows (the method of four Russians).
    """
    words = _generate_blocks(x, -(-(_DEGREE + _TABLE_BITS) // _N))
    sums = np.zeros((1 << _TABLE_BITS, len(words) - _TABLE_BITS + 1), np.uint32)
    for i in range(_TABLE_BITS):
        end = len(words) - _TABLE_BITS + 1 + i
        np.bitwise_xor(sums[: 1 << i], words[i:end], out=sums[1 << i : 2 << i])
    windows = np.lib.stride_tricks.sliding_window_view(sums.reshape(-1), _N)
    patterns, offsets = _patterns_of_jump(num_words)
    starts = patterns * np.intp(sums.shape[1]) + offsets
    total = np.zeros(_N, np.uint32)
    for i in range(0, len(starts), _BATCH_WINDOWS):
        total ^= np.bitwise_xor.reduce(windows[starts[i : i + _BATCH_WINDOWS]], axis=0)
    return total


_TABLE_BITS = 5
_BATCH_WINDOWS = 512
"""Windows that are summed at once: this number of windows stays in a processor's cache."""


@lru_cache(maxsize=256)
def _patterns_of_jump(num_words: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of the table to sum, and their offsets in words.

    Cached, since models draw the same lengths over and over.
    """
    coefficients = _coefficients(_power_of_t(num_words))
    coefficients = np.append(coefficients, np.zeros(-len(coefficients) % _TABLE_BITS, np.uint8))
    weights = 1 << np.arange(_TABLE_BITS)
    patterns = (coefficients.reshape(-1, _TABLE_BITS) * weights).sum(1)
    used = np.flatnonzero(patterns)
    return patterns[used].astype(np.intp), used * _TABLE_BITS


# The state of a CPU generator in torch: a struct of 5,056 bytes, of which these are fields.

_LEFT_FIELD = slice(8, 12)
_SEEDED_FIELD = slice(12, 16)
_NEXT_FIELD = slice(16, 24)
_BLOCK_FIELD = slice(24, 24 + 8 * _N)
STATE_BYTES = 5056
_KEPT_NORMAL_FIELD = slice(5040, 5044)

WORDS_OF_NORMAL_PAIR = 4
"""Normal numbers that are drawn one by one come in pairs, of two uniform numbers in float64."""


def is_state(tensor: torch.Tensor) -> bool:
    """Whether a real tensor is the state of a CPU generator, or a copy of one."""
    if tensor.dtype != torch.uint8 or tensor.shape != (STATE_BYTES,) or tensor.is_meta:
        return False
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return False
    data = np.frombuffer(memory.bytes_at(tensor.data_ptr(), STATE_BYTES), np.uint8)
    left, used = data[_LEFT_FIELD].view(np.int32)[0], data[_NEXT_FIELD].view(np.uint64)[0]
    is_counted = 1 <= left <= _N and used <= _N and data[_SEEDED_FIELD].view(np.int32)[0] == 1
    return bool(is_counted and not (data[_BLOCK_FIELD].view(np.uint64) >> np.uint64(32)).any())


def words_of(state: torch.Tensor) -> bytes:
    """The block of 624 words in a state, in 4 bytes each."""
    data = np.frombuffer(memory.bytes_at(state.data_ptr(), STATE_BYTES), np.uint8)
    return data[_BLOCK_FIELD].view(np.uint64).astype(np.uint32).tobytes()


def has_kept_normal(state: torch.Tensor) -> bool:
    """Whether the second normal number of a pair is kept for the next draw."""
    return bool(state.numpy()[_KEPT_NORMAL_FIELD].any())


def jump_ahead(state: torch.Tensor, num_words: int) -> torch.Tensor:
    """The state of a CPU generator `num_words` words after `state`.

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
    left = data[_LEFT_FIELD].view(np.int32)
    used = _N + 1 - int(left[0]) + num_words  # words of this block; all 624 in a new state
    if num_words == 0:
        return moved
    num_blocks = (used - 1) // _N
    if num_blocks:
        words = data[_BLOCK_FIELD].view(np.uint64)
        # The target is `jump` blocks ahead or one more, depending on the position in the block; the
        # jump has the first length in any case, so that equal numbers of words share a polynomial.
        jump = num_words // _N
        words[:] = _block_after(words.astype(np.uint32), num_blocks, jump)
        used -= num_blocks * _N
    left[0] = _N + 1 - used
    data[_NEXT_FIELD].view(np.uint64)[0] = used
    return moved
