"""Pictures until the shift monitor's alarm: `python -m benchmarks.shift_monitor`.

Replays the predictions of `eulerlora evaluate --out` in random orders, each through a monitor that
has seen nothing, and prints how many orders of each set end with an alarm and after how many
pictures.
"""

import csv
import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import read_config
from eulerlora.settings import AUTO, Auto, Mode
from eulerlora_client.monitoring.shift import ShiftMonitor
from service.telemetry.shift_monitor import FEATURE_DISTANCE, MSP, Reference

Events = dict[str, int | None]
HEADER = ("set", "pictures", "unfamiliar", "ood", "alarms", "first", "median", "last", "evidence")


@dataclass(frozen=True)
class Replay:
    """The orders of one set.

    pictures_to_alarm: by order, None without an alarm. evidence: the highest of all orders.
    """

    pictures_to_alarm: tuple[int | None, ...]
    evidence: float


@click.command()
@click.argument("predictions", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--checkpoint", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True)
@click.option("--samples", default="4", show_default=True, help="With stoch: a number or auto.")
@click.option("--orders", type=click.IntRange(1), default=20, show_default=True)
def main(predictions: Path, checkpoint: Path, mode: Mode, samples: str, orders: int) -> None:
    """Replay the predictions.csv.gz of an evaluation."""
    count: int | Auto = 1 if mode == "det" else AUTO if samples == AUTO else int(samples)
    config = read_config(checkpoint)
    threshold = config.threshold(mode, count)
    if threshold is None:
        raise click.ClickException(f"{checkpoint}: no thresholds for {mode} with {count} samples")
    reference = Reference.of(threshold)
    sets = events_by_set(predictions, config, reference, mode, count)
    if not sets:
        raise click.ClickException(f"{predictions}: no predictions in {mode} with {count} samples")
    limit = ShiftMonitor(reference.rates).limit
    click.echo(f"{orders} orders; an alarm needs evidence of {limit:.2f}\n")
    click.echo("| " + " | ".join(HEADER) + " |\n|---" + "|---:" * (len(HEADER) - 1) + "|")
    for name, pictures in sets.items():
        result = replay(pictures, reference, orders)
        click.echo("| " + " | ".join(cells(name, pictures, result)) + " |")


def events_by_set(
    path: Path, config: CheckpointConfig, reference: Reference, mode: Mode, samples: int | Auto
) -> dict[str, list[Events]]:
    """Returns the events of every picture of a mode, by the name of its set."""
    classes = [label.name for label in config.classes]
    sets: dict[str, list[Events]] = {}
    with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape", newline="") as file:
        for row in csv.DictReader(file):
            if (row["mode"], row["samples"]) == (mode, str(samples)):
                probabilities = [float(row[f"p_{name}"]) for name in classes]
                distance = row["feature_distance"]
                events = reference.events(
                    float(row["msp"]),
                    float(distance) if distance else None,
                    probabilities.index(max(probabilities)),
                )
                sets.setdefault(row["set"], []).append(events)
    return sets


def replay(pictures: Sequence[Events], reference: Reference, orders: int) -> Replay:
    """Returns the result of random orders of the pictures."""
    results, highest = [], 0.0
    for seed in range(orders):
        shuffled = random.Random(seed).sample(pictures, len(pictures))
        monitor = ShiftMonitor(reference.rates)
        for events in shuffled:
            monitor.record(events, reference.rates)
            highest = max(highest, *(state.evidence for state in monitor.states()))
            if monitor.alarm:
                break
        results.append(monitor.pictures if monitor.alarm else None)
    return Replay(tuple(results), highest)


def cells(name: str, pictures: Sequence[Events], result: Replay) -> list[str]:
    """Returns a row of the table."""
    alarms = sorted(number for number in result.pictures_to_alarm if number is not None)
    numbers = [alarms[0], alarms[len(alarms) // 2], alarms[-1]] if alarms else ["", "", ""]
    return [
        name,
        str(len(pictures)),
        share(pictures, FEATURE_DISTANCE),
        share(pictures, MSP),
        f"{len(alarms)} of {len(result.pictures_to_alarm)}",
        *map(str, numbers),
        f"{result.evidence:.2f}",
    ]


def share(pictures: Sequence[Events], signal: str) -> str:
    """Returns the share of the pictures that show the event; "" without this signal."""
    events = [events[signal] for events in pictures if signal in events]
    return f"{sum(event is not None for event in events) / len(events):.3f}" if events else ""


if __name__ == "__main__":
    main()
