"""Data sets: contents, splits, windows, and the definitions of artificial tasks."""

import gzip
import hashlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.datasets import adding, copying, files, moving_digits, vowels
from experiments.datasets.digits import by_pixels, mnist, permutation
from experiments.datasets.text import (
    evaluation_window,
    evaluation_windows,
    shakespeare,
    text_file,
    window,
    windows,
)
from experiments.settings.rules import ConfigError

pytestmark = pytest.mark.default

TEXT_SHA256 = "23c281b439ebc5988895e0cc611686e8707688d98a73e9d0e8f588c62f4894ec"


def message_of(call, *args, **options):
    """The one line of the user error that a call raises."""
    with pytest.raises(ConfigError) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Files.


@pytest.mark.parametrize("name", files.SHA256)
def test_data_files_are_committed_and_listed_with_their_hash(name):
    contents = files.read_bytes(name)
    readme = (files.DATA / "README.md").read_text()
    assert f"| `{name}` | {len(contents):,} | `{files.SHA256[name]}` |" in readme
    assert hashlib.sha256(contents).hexdigest() == files.SHA256[name]


def flip(contents):
    return contents[:9] + bytes([contents[9] ^ 1]) + contents[10:]


@pytest.mark.parametrize(
    "change, problem, got",
    [
        (None, "is missing", "got no file"),
        (flip, "is damaged", "(45374 bytes)"),
        (lambda contents: contents[:-1], "is damaged", "(45373 bytes)"),
        (lambda contents: b"", "is damaged", "(0 bytes)"),
    ],
)
def test_damaged_files_are_reported_with_their_remedy(tmp_path, change, problem, got):
    path = tmp_path / "digits8x8.npz"
    if change:
        path.write_bytes(change(files.read_bytes(path.name)))
    message = message_of(files.read_bytes, path.name, tmp_path)
    assert f"{path} {problem}: expected sha256 6f80155" in message and got in message
    assert "`git checkout -- experiments/data/digits8x8.npz`" in message


# Texts.


@pytest.fixture(scope="module")
def plays():
    return shakespeare()


def test_text_and_alphabet_are_as_documented(plays):
    text = plays.decode(plays.codes)
    assert hashlib.sha256(text.encode("ascii")).hexdigest() == TEXT_SHA256
    assert plays.symbols == "".join(sorted(set(text))) and len(plays.symbols) == 64
    assert plays.codes.dtype == np.uint8 and plays.codes.shape == (1_117_815,)
    np.testing.assert_array_equal(plays.encode(text), plays.codes)


def test_text_splits_follow_each_other(plays):
    ranges = list(plays.ranges.values())
    assert ranges == [(0, 1_006_000), (1_006_000, 1_062_000), (1_062_000, 1_117_815)]
    # Each part but the first also has the character before it.
    for split, (start, stop) in plays.ranges.items():
        codes, documents = plays.part(split)
        start = max(start - 1, 0)
        np.testing.assert_array_equal(codes, plays.codes[start:stop])
        inside = [d for d in plays.documents if start <= d < stop]
        assert [d + start for d in documents] == inside


@pytest.mark.parametrize("text", ["To be 3", "\N{EURO SIGN}", "\ud800"])
def test_characters_outside_the_alphabet_are_shown(plays, text):
    message = message_of(plays.encode, text)
    assert f"{text[-1]!r} at position {len(text) - 1} is not in the alphabet" in message


def test_text_files_of_users_are_split_by_shares(tmp_path):
    path = tmp_path / "own.txt"
    # More than 256 symbols need two bytes; the text begins with a byte order mark.
    symbols = "".join(map(chr, range(200, 527)))
    path.write_bytes(b"\xef\xbb\xbf" + symbols.encode())
    text = text_file(path)
    assert text.symbols == symbols and text.codes.dtype == np.uint16
    assert list(text.ranges.values()) == [(0, 294), (294, 310), (310, 327)]
    assert text.decode(text.codes) == symbols and text.documents == (0,)


@pytest.mark.parametrize(
    "contents, expected",
    [
        (b"x" * 120 + b"\xff", "must be UTF-8, got byte 0xff at position 120"),
        (b"x" * 319, "must have at least 320 characters, got 319"),
        (b"", "must have at least 320 characters, got 0"),
        (None, "cannot be read: No such file"),
    ],
)
def test_wrong_text_files_are_reported(tmp_path, contents, expected):
    path = tmp_path / "own.txt"
    if contents is not None:
        path.write_bytes(contents)
    message = message_of(text_file, path)
    assert str(path) in message and expected in message


# Windows.

DOCUMENTS = (0, 7, 13)


def resets_by_hand(first, start, steps):
    """Resets of a window at `first`, in a stream that begins at `start`."""
    return [i == start or i in DOCUMENTS for i in range(first, first + steps)]


def test_windows_equal_slices_of_each_stream(rng):
    streams, steps = 3, 4
    codes = rng.integers(0, 256, 3 * 4 * 2 + 8, np.uint8)
    count = windows(len(codes), streams, steps)
    assert count == 3
    starts = 0, 9, 19  # The last stream ends at character 31.
    in_program = jax.jit(lambda c, n: window(c, n, streams, steps, DOCUMENTS))
    for n in range(5):
        inputs, targets, resets = in_program(codes, n)
        assert inputs.dtype == targets.dtype == jnp.int32
        for b in range(streams):
            start = starts[b]
            first = start + n % count * steps
            assert inputs[b].tolist() == codes[first : first + steps].tolist()
            assert targets[b].tolist() == codes[first + 1 : first + steps + 1].tolist()
            assert resets[b].tolist() == resets_by_hand(first, start, steps)


@pytest.mark.parametrize("length", [13, 25, 26, 36, 37])
def test_training_windows_of_several_streams_cover_every_character(length):
    codes, read = np.arange(length), set()
    for n in range(windows(length, 3, 4)):
        inputs, targets, _ = window(codes, n, 3, 4)
        np.testing.assert_array_equal(targets, inputs + 1)
        read |= {*inputs.ravel().tolist(), *targets.ravel().tolist()}
    assert read == set(range(length))


@pytest.mark.parametrize("length", [5, 25, 28])
def test_evaluation_targets_cover_every_character_once(length, rng):
    streams, steps = 3, 4
    codes = np.arange(length, dtype=np.uint8) + 100
    covered = []
    for n in range(evaluation_windows(length, streams, steps)):
        (inputs, targets, resets), mask = evaluation_window(
            codes, n, streams, steps, DOCUMENTS
        )
        assert mask.shape == inputs.shape == (streams, steps)
        np.testing.assert_array_equal(targets[mask], inputs[mask] + 1)
        covered += targets[mask].tolist()
        is_document = np.isin(inputs - 100, DOCUMENTS)
        is_first = (n == 0) & (np.arange(steps) == 0)
        np.testing.assert_array_equal(resets[mask], (is_document | is_first)[mask])
    assert sorted(covered) == codes[1:].tolist()


@pytest.mark.parametrize(
    "count, options, expected",
    [
        (windows, (12, 3, 4), "at least 13 characters, got 12"),
        (evaluation_windows, (3, 3, 4), "at least 4 characters, got 3"),
        (windows, (12, 0, 4), "`streams` must be at least 1, got 0"),
        (evaluation_windows, (12, 3, 0), "`steps` must be at least 1, got 0"),
    ],
)
def test_impossible_windows_are_reported(count, options, expected):
    assert expected in message_of(count, *options)


# Japanese Vowels.


def test_vowels_have_the_documented_splits():
    train, validation, test = parts = vowels.japanese_vowels()
    assert [len(part.labels) for part in parts] == [216, 54, 370]
    assert np.bincount(train.labels).tolist() == [24] * 9
    assert np.bincount(validation.labels).tolist() == [6] * 9
    assert np.bincount(test.labels).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    for part in parts:
        assert part.inputs.shape == (len(part.labels), part.lengths.max(), 12)
        assert (part.inputs[~vowels.mask(part)] == 0).all()


def test_vowels_are_normalized_by_statistics_of_training_frames():
    train, _, test = vowels.japanese_vowels()
    frames = np.concatenate(vowels.sequences(train)).astype(float)
    mean, deviation = vowels.statistics(train)
    np.testing.assert_allclose(mean, frames.mean(0), rtol=1e-6)
    np.testing.assert_allclose(deviation, frames.std(0), rtol=1e-6)
    normal = vowels.normalize(test, mean, deviation)
    assert normal.inputs.dtype == np.float32
    for new, old in zip(*map(vowels.sequences, (normal, test)), strict=True):
        np.testing.assert_allclose(new, (old - mean) / deviation, rtol=1e-6)
    assert (normal.inputs[~vowels.mask(test)] == 0).all()


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_buckets_need_the_fewest_steps(count, rng):
    lengths = rng.choice([2, 3, 5, 9, 10, 14], 30)
    lengths[:6] = [14, 9, 3, 2, 5, 10]
    bucket, padded = vowels.buckets(lengths, count)
    assert len(padded) == count and (padded[bucket] >= lengths).all()
    assert ((bucket == 0) | (padded[bucket - 1] < lengths)).all()

    def steps(ends):
        return sum(min(end for end in ends if end >= length) for length in lengths)

    choices = itertools.combinations([2, 3, 5, 9, 10, 14], count)
    least = min(steps(ends) for ends in choices if 14 in ends)
    assert padded[bucket].sum() == least


# Digits.


def test_pixels_are_read_in_the_given_order(rng):
    images = rng.random((2, 3, 4))
    order = permutation(12, seed=5)
    assert sorted(order) == list(range(12)) and order.tolist() != sorted(order)
    assert order.tolist() == permutation(12, seed=5).tolist()
    assert order.tolist() != permutation(12, seed=6).tolist()
    plain, permuted = by_pixels(images), by_pixels(images, order)
    for k, step in itertools.product(range(2), range(12)):
        assert plain[k, step, 0] == images[k, step // 4, step % 4]
        assert permuted[k, step, 0] == images[k, order[step] // 4, order[step] % 4]


def idx(array):
    """The bytes of an IDX file."""
    header = np.array([0x800 + array.ndim, *array.shape], ">u4")
    return header.tobytes() + array.tobytes()


@pytest.fixture
def small_mnist(tmp_path, rng):
    """A folder with 7 training images and 3 test images; half of the files are .gz."""
    images = rng.integers(0, 256, (10, 28, 28), np.uint8)
    labels = rng.integers(0, 10, 10, np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images[:7]))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(idx(labels[:7]))
    )
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[7:])))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(labels[7:]))
    return tmp_path, images, labels


def test_mnist_is_read_from_its_own_files(small_mnist):
    folder, images, labels = small_mnist
    cuts = slice(0, 5), slice(5, 7), slice(7, 10)
    for part, cut in zip(mnist(folder, validation=2), cuts, strict=True):
        assert part.images.dtype == np.float32
        np.testing.assert_allclose(part.images * 255, images[cut], rtol=1e-6)
        np.testing.assert_array_equal(part.labels, labels[cut])
    assert "must be in [1, 7)" in message_of(mnist, folder, validation=7)


BYTES = np.zeros((7, 28, 28), np.uint8)
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"
# A file, what it has, and what the error says. An archive has the time at which it was
# made: without `ids`, pytest's workers would collect different tests.
WRONG = {
    "missing": (IMAGES, None, "is missing"),
    "one axis": (IMAGES, idx(BYTES[0, 0]), "with 3 axes, got 2049"),
    "short": (IMAGES, idx(BYTES)[:-1], "must have 5504 bytes for an array of shape"),
    "narrow": (IMAGES, idx(BYTES[:, :, 1:]), "of 28 by 28 pixels, got (28, 27)"),
    "few": (IMAGES, idx(BYTES[1:]), "got 7 labels and 6 images"),
    "label of 10": (LABELS, gzip.compress(idx(np.uint8(range(4, 11)))), "10), got 10"),
    "no archive": (LABELS, b"no archive", "cannot be read"),
}


@pytest.mark.parametrize("name, contents, expected", WRONG.values(), ids=WRONG)
def test_wrong_mnist_files_are_reported(small_mnist, name, contents, expected):
    path = small_mnist[0] / name
    path.unlink()
    if contents is not None:
        path.write_bytes(contents)
    message = message_of(mnist, small_mnist[0], validation=2)
    assert expected in message and (name == LABELS or str(path) in message)


# Moving digits.


def test_digits_move_by_their_velocity_and_bounce():
    position, velocity = jnp.array([0.5, 0.25]), jnp.array([0.25, -0.125])
    path = moving_digits.paths(position, velocity, 9)
    # All numbers are binary fractions, so equality is exact.
    expected = [
        [0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0, 0.25, 0.5],
        [0.25, 0.125, 0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75],
    ]
    np.testing.assert_array_equal(path.T, expected)
    # A digit stops at the wall, also where it would go beyond it.
    path = moving_digits.paths(jnp.array([0.875]), jnp.array([0.25]), 3)
    assert path[:, 0].tolist() == [0.875, 1.0, 0.75]


def test_one_digit_is_drawn_whole_and_moves_at_its_speed(key, rng):
    digit = rng.uniform(0.1, 1, (1, 3, 3)).astype(np.float32)
    size, frames, space, speed = 106, 12, 100, 0.12
    options = dict(scale=2, per_frame=1, speed=speed)
    draw = jax.jit(
        lambda key: moving_digits.sample(key, digit, 15, size, frames, **options)
    )
    videos = np.asarray(draw(key))
    assert videos.shape == (15, frames, size, size, 1) and videos.dtype == np.float32
    # (15, frames, 2): the first row and the first column that are not black.
    lit = videos[..., 0] > 0
    corners = np.stack([lit.any(3).argmax(2), lit.any(2).argmax(2)], -1)
    enlarged = np.kron(digit[0], np.ones((2, 2), np.float32))
    for video, path in zip(videos, corners, strict=True):
        for frame, (y, x) in zip(video, path, strict=True):
            expected = np.zeros((size, size), np.float32)
            expected[y : y + 6, x : x + 6] = enlarged
            np.testing.assert_array_equal(frame[..., 0], expected)
    inside = ((corners > 0) & (corners < space)).all(-1)
    is_free = inside[:, :-1] & inside[:, 1:]
    distances = np.linalg.norm(np.diff(corners, axis=1), axis=-1)[is_free]
    # Corners are rounded down to whole pixels.
    assert is_free.any(1).all() and (abs(distances - speed * space) < 1.5).all()
    # Some digit touches each wall.
    assert corners.min() == 0 and corners.max() == space
    assert len(np.unique(corners[:, 0])) > 5


# Copying and adding.


def test_copying_is_the_task_of_bai_et_al(key):
    blanks, count = 7, 300
    task = copying.sample(key, count, blanks)
    inputs, targets = np.asarray(task.inputs), np.asarray(task.targets)
    assert inputs.shape == targets.shape == (count, blanks + 20)
    symbols = inputs[:, :10]
    np.testing.assert_array_equal(targets[:, -10:], symbols)
    assert (inputs[:, 10:-11] == 0).all() and inputs[:, 10:-11].shape[1] == blanks - 1
    assert (inputs[:, -11:] == 9).all() and (targets[:, :-10] == 0).all()
    # Eight equally likely symbols; five standard deviations.
    counts = np.bincount(symbols.ravel(), minlength=10)
    assert counts[0] == counts[9] == 0
    assert abs(counts[1:9] - 375).max() < 5 * math.sqrt(375)
    # With one blank, the delimiter follows the symbols.
    assert copying.sample(key, 1, 1).inputs[0, 10:].tolist() == [9] * 11
    assert "got 0" in message_of(copying.sample, key, 1, 0)


def test_adding_is_the_problem_of_bai_et_al(key):
    length, count = 5, 2000
    inputs, targets = map(np.asarray, adding.sample(key, count, length))
    numbers, markers = inputs[..., 0], inputs[..., 1]
    assert inputs.shape == (count, length, 2) and targets.shape == (count,)
    assert numbers.min() >= 0 and 0.99 < numbers.max() < 1
    assert set(np.unique(markers)) == {0, 1} and (markers.sum(1) == 2).all()
    np.testing.assert_allclose(targets, (numbers * markers).sum(1), rtol=1e-6)
    # All ten pairs of steps are equally likely; five standard deviations.
    pairs = np.unique(markers, axis=0, return_counts=True)[1]
    assert len(pairs) == 10 and abs(pairs - 200).max() < 5 * math.sqrt(200)
    assert "got 1" in message_of(adding.sample, key, 1, 1)
