"""Time and memory of `aggregate_train` beside Flower's FedAvg, on the same replies.

    python benchmarks/flower_step.py [--millions 5 20 50] [--replies 8] [--rounds 4] [--quick]

Every row has a process of its own, in which replies are made anew for each round, as a grid would
hand them over. `ms` is the median over the rounds but the first, in processor time of the thread
that makes the step: other work on the machine changes the clock's time far more. `peak` is the most
memory of the process, and `less columns` leaves out what FedSteer's columns take of it. The row
"folder" also writes records and a checkpoint every round, in a thread of its own, whose time does
not count. Rounds are far apart in practice, so the next one waits until that is done; `written in`
is how long it takes by the clock.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS = ("flower", "fedsteer", "folder")


def one_row(kind: str, millions: float, replies: int, rounds: int) -> dict[str, float]:
    """Rounds of one strategy in this process."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    sys.path.insert(0, str(ROOT))
    from tests.flower.fake import FakeGrid

    from fedsteer.flower import FedSteer

    size, layers = int(millions * 1e6), 10
    draw = np.random.default_rng(0)
    names = [f"layer{number}.weight" for number in range(layers)]
    shape = (1000, size // layers // 1000)
    initial = ArrayRecord(
        {name: Array(draw.normal(size=shape).astype(np.float32)) for name in names}
    )
    grid = FakeGrid({node: lambda message: message for node in range(1, replies + 1)})

    def answers(messages: list[Message]) -> list[Message]:
        found = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"message-{number}"
            sent = next(iter(message.content.array_records.values()))
            moved = {
                name: Array(array.numpy() - 0.01 * draw.random(shape, np.float32))
                for name, array in sent.items()
            }
            metrics = MetricRecord({"num-examples": 100, "partition-id": number, "train_loss": 1.0})
            content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
            found.append(Message(content, reply_to=message))
        return found

    with tempfile.TemporaryDirectory() as folder:
        strategy: Any = FedAvg()
        if kind != "flower":
            strategy = FedSteer(folder=folder if kind == "folder" else None, fraction_evaluate=0.0)
        arrays, times, written = initial, [], [0.0]
        for number in range(1, rounds + 1):
            messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
            came = answers(messages)
            began = thread_time()
            arrays, _ = strategy.aggregate_train(number, came)
            times.append(thread_time() - began)
            del came, messages
            if kind == "folder":
                began = perf_counter()
                strategy.run.store.settle()
                written.append(perf_counter() - began)
        if kind == "folder":
            strategy.run.store.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    columns = 0 if kind == "flower" else min(20, replies) * size * 4
    return {
        "seconds": median(times[1:]),
        "peak": peak,
        "columns": columns,
        "written": max(written),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millions", type=float, nargs="+", default=[5, 20, 50])
    parser.add_argument("--replies", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        found = one_row(options.row, options.millions[0], options.replies, options.rounds)
        print(json.dumps(found))
        return
    millions = [0.1] if options.quick else options.millions
    print("| weights | | ms | times Flower's | peak | less columns, times Flower's | written in |")
    print("| --: | :-- | --: | --: | --: | --: | --: |")
    for count in millions:
        stock: dict[str, float] = {}
        for row in ROWS:
            command = [sys.executable, __file__, "--row", row, "--millions", str(count)]
            command += ["--replies", str(options.replies), "--rounds", str(options.rounds)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(ran.stdout.splitlines()[-1])
            stock = stock or found
            time, peak = found["seconds"], found["peak"]
            more = (peak - found["columns"]) / stock["peak"]
            print(
                f"| {count:g} M | {row} | {1e3 * time:.0f} | {time / stock['seconds']:.1f} "
                f"| {peak / 1e9:.2f} GB | {more:.2f} "
                + (f"| {found['written']:.1f} s |" if found["written"] else "| |"),
                flush=True,
            )


if __name__ == "__main__":
    main()
