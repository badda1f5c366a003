"""Weak scaling on paper: the time of an update against that of its communication.

    python -m benchmarks.scaling

writes the tables of docs/scaling.md. Nothing here is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("docs/scaling.md")


@dataclass(frozen=True)
class Hardware:
    """Figures of a device, per second.

    Attributes:
      name: the device.
      flops: peak of matrix products in bfloat16.
      memory: bytes read from the memory of the device.
      links: bytes that a device sends in a ring, within and beyond one host.
      per_host: number of devices that the first of `links` connects.
    """

    name: str
    flops: float
    memory: float
    links: tuple[float, float]
    per_host: int

    def bandwidth(self, devices: int) -> float:
        """Returns the bytes per second of a ring of devices."""
        return self.links[devices > self.per_host]


@dataclass(frozen=True)
class Model:
    """Layers of an LSTM, as wide as their inputs.

    Attributes:
      layers: number of layers.
      features: number of units, and of inputs, of each layer.
      rows: batch of one device.
      time: number of steps.
    """

    layers: int
    features: int
    rows: int
    time: int

    @property
    def kernel(self) -> int:
        """Number of weights in the recurrent kernel of a layer."""
        return 4 * self.features**2

    @property
    def parameters(self) -> int:
        """Number of parameters: two kernels and a bias for each layer."""
        return self.layers * (2 * self.kernel + 4 * self.features)


# NVLink: 900 GB/s in both directions; one 400 Gb/s adapter for each of eight GPUs.
H100 = Hardware("H100", 989e12, 3.35e12, (450e9, 400e9), 8)
# 1200 GB/s in both directions over six links; a ring takes two of them.
V5P = Hardware("TPU v5p", 459e12, 2.765e12, (200e9, 200e9), 4)
LSTM = Model(layers=4, features=2048, rows=64, time=512)
DEVICES = (8, 256, 4096)
WIDTHS = (2048, 8192, 16384)
# Assumptions: share of the peak that large products reach, and seconds of one hop.
UTILIZATION, HOP = 0.5, 2e-6


def step_time(model: Model, on: Hardware, shards: int = 1) -> float:
    """Returns the least seconds of one step of a layer, of its product alone.

    It takes the longer of reading the kernel in bfloat16 and of multiplying.

    Args:
      model: the model.
      on: the devices.
      shards: number of devices that share the features.
    """
    reading = 2 * model.kernel / shards / on.memory
    multiplying = 2 * model.rows * model.kernel / shards / (UTILIZATION * on.flops)
    return max(reading, multiplying)


def update_time(model: Model, on: Hardware) -> float:
    """Returns the least seconds of an update, without communication.

    Each layer has a loop forward and a loop backward, and four products of all steps at
    once: the projection, and the gradients of its inputs and of two kernels.
    """
    loops = 2 * model.time * step_time(model, on)
    product = 2 * model.rows * model.time * model.kernel / (UTILIZATION * on.flops)
    return model.layers * (loops + 4 * product)


def sent(size: float, devices: int) -> float:
    """Returns the bytes that each device sends in an all-reduce of `size` bytes."""
    return 2 * (devices - 1) / devices * size


def all_reduce_time(size: float, devices: int, on: Hardware) -> tuple[float, float]:
    """Returns seconds of a ring all-reduce: of its bytes, and of its hops."""
    return sent(size, devices) / on.bandwidth(devices), 2 * (devices - 1) * HOP


def all_gather_time(model: Model, shards: int, on: Hardware) -> float:
    """Returns seconds to gather the states of one step in bfloat16, in a ring."""
    size = 2 * model.rows * model.features
    hops = shards - 1
    return hops / shards * size / on.bandwidth(shards) + hops * HOP


def weak_scaling() -> str:
    """Returns the table of updates for each number of devices."""
    size = 4 * LSTM.parameters
    rows = []
    for on in (H100, V5P):
        update = update_time(LSTM, on)
        for devices in DEVICES:
            moving, hops = all_reduce_time(size, devices, on)
            rows.append(
                (
                    on.name,
                    f"{devices:,}",
                    f"{sent(size, devices) / 1e6:,.0f} MB",
                    f"{moving * 1e3:.1f} ms",
                    f"{hops * 1e3:.2f} ms",
                    f"{update * 1e3:.0f} ms",
                    f"{update / (update + moving):.1%}",
                    f"{update / (update + moving + hops):.1%}",
                )
            )
    titles = ("device", "devices", "sent by each", "bytes", "hops", "computation")
    return _table((*titles, "efficiency", "with hops"), rows)


def model_axis(shards: int = 8) -> str:
    """Returns the table of a step with features on one device, and on several."""
    rows = []
    for features in WIDTHS:
        model = Model(LSTM.layers, features, LSTM.rows, LSTM.time)
        alone, shared = step_time(model, H100), step_time(model, H100, shards)
        gather = all_gather_time(model, shards, H100)
        rows.append(
            (
                f"{features:,}",
                f"{alone * 1e6:.0f} µs",
                f"{shared * 1e6:.1f} µs",
                f"{gather * 1e6:.1f} µs",
                f"{alone / (shared + gather):.1f}",
            )
        )
    titles = ("features", "one device", f"one of {shards}", "all-gather", "speed-up")
    return _table(titles, rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES = {"weak scaling": weak_scaling, "model axis": model_axis}


def markers(name: str) -> tuple[str, str]:
    """Returns what stands before and after a table of the page."""
    return f"<!-- {name}: begin -->\n\n", f"\n\n<!-- {name}: end -->"


def main() -> None:
    """Writes the tables."""
    text = PAGE.read_text()
    for name, table in TABLES.items():
        begin, end = markers(name)
        before, rest = text.split(begin)
        text = f"{before}{begin}{table()}{end}{rest.split(end)[1]}"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
