"""Runs the benchmarks: every case in every mode; the contenders take turns."""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

import rnncells
from benchmarks.contenders import Contender, Peer
from benchmarks.floor import make_floor
from benchmarks.linen import (
    check_equal_to_flax,
    make_flax,
    make_flax_cell,
    make_flax_optimized,
    make_our_cell,
    make_rnncells,
)
from benchmarks.peers import make_equinox, make_haiku, make_keras
from benchmarks.pytorch import make_torch
from benchmarks.report import OURS
from benchmarks.sizes import CELLS, Size
from benchmarks.timing import Spread, interleave, ratios, spread

# In the order of the tables.
PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "rnncells", CELLS, make_rnncells),
        Peer("flax", "flax", CELLS, make_flax),
        Peer("flax-optimized", "flax", ("LSTM",), make_flax_optimized),
        Peer("flax-cell", "flax", ("LSTM", "GRU", "ConvLSTM"), make_flax_cell),
        Peer("our-cell", "rnncells", ("CompactLSTM",), make_our_cell),
        Peer("haiku", "haiku", ("LSTM", "GRU", "ConvLSTM"), make_haiku),
        Peer("equinox", "equinox", ("LSTM", "GRU"), make_equinox),
        Peer("keras", "keras", ("LSTM", "GRU", "ConvLSTM"), make_keras),
        Peer("torch", "torch", ("LSTM", "GRU"), make_torch),
        Peer("floor", "jax", ("LSTM", "GRU"), make_floor),
    )
}
PACKAGES = ("jax", "jaxlib", "numpy", "flax", "dm-haiku", "equinox", "keras", "torch")


def measure(
    cases: Sequence[tuple[str, Size]],
    modes: Sequence[str],
    peers: Sequence[str],
    rounds: int,
    limit_seconds: float,
) -> Iterator[dict[str, Any]]:
    """Yields the measurement of each case in each mode.

    Args:
      cases: cells and sizes.
      modes: names in `benchmarks.sizes.MODES`.
      peers: names in `PEERS` to compare with.
      rounds: number of measurements of each contender.
      limit_seconds: time limit of a case, after at least three rounds.

    Raises:
      RuntimeError: our values differ from Flax's.
    """
    # Compilations are timed, so the cache must be off.
    jax.config.update("jax_enable_compilation_cache", False)
    for cell in dict.fromkeys(cell for cell, _ in cases):
        check_equal_to_flax(cell)
    for cell, size in cases:
        for mode in modes:
            yield measure_case(cell, size, mode, peers, rounds, limit_seconds)


def measure_case(
    cell: str,
    size: Size,
    mode: str,
    peers: Sequence[str],
    rounds: int,
    limit_seconds: float = math.inf,
) -> dict[str, Any]:
    """Times ours and the peers on one case.

    Args:
      cell: a name in `benchmarks.sizes.CELLS`.
      size: a size for this cell.
      mode: a name in `benchmarks.sizes.MODES`.
      peers: see `measure`.
      rounds: see `measure`.
      limit_seconds: see `measure`.

    Returns:
      The case; `contenders`, the measurements by name; `missing`, the reasons why
      libraries with this cell were not measured.
    """
    chosen = [PEERS[name] for name in PEERS if name in (OURS, *peers)]
    made = {p.name: _make(p, cell, size, mode) for p in chosen if cell in p.cells}
    contenders = {k: v for k, v in made.items() if isinstance(v, Contender)}
    runs = {name: one.run for name, one in contenders.items()}
    times = interleave(runs, rounds, limit_seconds)
    ratio = ratios(times, OURS)
    return {
        "cell": cell,
        "size": dataclasses.asdict(size),
        "mode": mode,
        "rounds": len(times[OURS]),
        "contenders": {
            k: _fields(v, spread(times[k]), ratio[k]) for k, v in contenders.items()
        },
        "missing": {k: v for k, v in made.items() if k not in contenders},
    }


def _fields(contender: Contender, seconds: Spread, ratio: Spread) -> dict[str, Any]:
    return {
        "seconds": seconds._asdict(),
        "ratio": ratio._asdict(),
        "compile_seconds": contender.compile_seconds,
        "temporary_bytes": contender.temporary_bytes,
    }


def _make(peer: Peer, cell: str, size: Size, mode: str) -> Contender | str:
    """Returns a contender that has run once, or why it cannot run."""
    if importlib.util.find_spec(peer.package) is None:
        return "not installed"
    try:
        made = peer.make(cell, size, mode)
        made.run()
    # Other libraries can fail on this version of jax; measure the rest.
    except Exception as error:
        if peer.name in (OURS, "floor"):
            raise
        return f"fails: {type(error).__name__}: {error}".splitlines()[0]
    return made


def describe_environment() -> dict[str, Any]:
    """Returns the versions, the processor and the device."""
    return {
        "python": platform.python_version(),
        "versions": {"rnncells": rnncells.__version__} | _versions(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count()},
        "device": jax.devices()[0].device_kind,
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return models[0].strip() if models else platform.processor()
