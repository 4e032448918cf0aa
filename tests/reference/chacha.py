"""The ChaCha8 keystream in NumPy, from its definition: the slow and obvious form to compare the package with.

Key: the `seed_from_u64` expansion of rand_core 0.6. Block: four constants, eight key words, a 64-bit block
counter and a 64-bit stream id, both little end first; four double rounds; the input state added at the end.
Word w of a stream is word w % 16 of block w // 16. It never imports the package.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

MASK_32 = (1 << 32) - 1
MASK_64 = (1 << 64) - 1
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
BLOCK_WORDS = 16
DOUBLE_ROUNDS = 4
BLOCKS_AT_ONCE = 4096


def key_from_seed(seed: int) -> bytes:
    """32 key bytes: a PCG32 step per four bytes, starting from state = seed."""
    state = seed & MASK_64
    key = b""
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) & MASK_64
        word = (((state >> 18) ^ state) >> 27) & MASK_32
        rotation = state >> 59
        word = ((word >> rotation) | (word << (32 - rotation))) & MASK_32
        key += word.to_bytes(4, "little")
    return key


def _rotate_left(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _quarter_rounds(a: Words, b: Words, c: Words, d: Words) -> tuple[Words, Words, Words, Words]:
    """Four quarter rounds side by side: row q of each argument belongs to quarter round q."""
    a = a + b
    d = _rotate_left(d ^ a, 16)
    c = c + d
    b = _rotate_left(b ^ c, 12)
    a = a + b
    d = _rotate_left(d ^ a, 8)
    c = c + d
    b = _rotate_left(b ^ c, 7)
    return a, b, c, d


def _blocks(key: bytes, stream: int, first: int, count: int) -> Words:
    """Words [count, 16] of the blocks `first` .. `first + count`."""
    counters = np.uint64(first) + np.arange(count, dtype=np.uint64)
    initial = np.empty((BLOCK_WORDS, count), dtype=np.uint32)
    initial[0:4] = np.array(CONSTANTS, dtype=np.uint32)[:, None]
    initial[4:12] = np.frombuffer(key, dtype="<u4")[:, None]
    initial[12] = (counters & np.uint64(MASK_32)).astype(np.uint32)
    initial[13] = (counters >> np.uint64(32)).astype(np.uint32)
    initial[14] = stream & MASK_32
    initial[15] = stream >> 32
    a, b, c, d = initial[0:4], initial[4:8], initial[8:12], initial[12:16]
    for _ in range(DOUBLE_ROUNDS):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        # The diagonals become columns when row r is turned left by r, and go back afterwards.
        a, b, c, d = _quarter_rounds(a, b[[1, 2, 3, 0]], c[[2, 3, 0, 1]], d[[3, 0, 1, 2]])
        b, c, d = b[[3, 0, 1, 2]], c[[2, 3, 0, 1]], d[[1, 2, 3, 0]]
    return (np.concatenate([a, b, c, d]) + initial).T


def words(seed: int, stream: int, start: int, count: int) -> Words:
    """Words `start` .. `start + count` of the stream `stream` under the key of `seed`."""
    key = key_from_seed(seed)
    result = np.empty(count, dtype=np.uint32)
    done = 0
    while done < count:
        block, offset = divmod(start + done, BLOCK_WORDS)
        wanted = min(-(-(offset + count - done) // BLOCK_WORDS), BLOCKS_AT_ONCE)
        piece = _blocks(key, stream, block, wanted).reshape(-1)[offset : offset + count - done]
        result[done : done + piece.size] = piece
        done += piece.size
    return result
