"""Chunks of time."""

import numpy as np
import pytest

from rnncells import Chunk
from rnncells.recurrence.chunks import Segment, split_time, square_root

pytestmark = pytest.mark.default


@pytest.mark.parametrize("time", [1, 2, 7, 24, 97, 1020])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 50])
def test_chunks_cover_time_with_about_the_given_steps(time, steps):
    segments = split_time(time, steps)
    at = 0
    for start, chunks, length in segments:
        assert start == at and length <= max(steps * 5 / 4, 1)
        at += chunks * length
    assert at == time
    # A rest is one chunk, the last.
    assert segments[0].steps >= min(time, steps) * 3 / 4
    assert all(segment.chunks == 1 for segment in segments[1:])


def test_lengths_that_divide_time_are_preferred():
    assert split_time(1020, 8) == (Segment(0, 102, 10),)
    assert split_time(7, 3) == (Segment(0, 2, 3), Segment(6, 1, 1))
    assert split_time(1024, square_root(1024)) == (Segment(0, 32, 32),)


def test_chunk_accepts_numpy_integers():
    assert split_time(6, Chunk(np.int64(3)).steps) == (Segment(0, 2, 3),)
