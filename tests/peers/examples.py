#!/usr/bin/env python3
"""Times training steps of ten example programs beside the same models in PyTorch, in turns.

    cargo build --release -p unisono-examples
    python tests/peers/examples.py [--torch PYTHON] [--only vae] [--rounds 5]

A program's step is the median time from one step to the next one, as it writes them to TensorBoard
(`--logdir`): with all that it does between two steps, such as reading and augmenting samples on other threads
of the same cores. `dqn` also plays its game between two steps. *Device* is the median time that the adapter
computes in a step of training or evaluation, by its own clock (`--trace`). PyTorch's step is that of
torch/examples.py, whose data are in memory. Times are in milliseconds. A turn during which other processes
took more than a tenth of a core is made again (on Linux).
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# The programs with epochs that make some hundred steps.
EPOCHS = {
    "vae": 12,
    "simclr": 12,
    "translate": 4,
    "diffusion": 10,
    "forecast": 8,
    "dqn": 1,
    "audio": 12,
    "recommend": 5,
    "grad_cam": 12,
    "segment": 6,
}
# Steps at the start that are not timed.
WARMUP = 20


def fields(message):
    """Yields the numbers and values of a protocol buffer's fields."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 2: None, 5: 4}[kind]
            size = varint() if size is None else size
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def step_times(logdir):
    """Returns the time at which each training step was written, by its number."""
    times = {}
    for path in sorted((logdir / "train").glob("events.*")):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            size = struct.unpack_from("<Q", data, at)[0]
            event = dict(fields(data[at + 12 : at + 12 + size]))
            if 5 in event:
                times.setdefault(event.get(2, 0), struct.unpack("<d", event[1])[0])
            at += 12 + size + 4
    return times


def own(name, programs):
    """Returns the milliseconds of a step of a program, and those of its device."""
    with tempfile.TemporaryDirectory() as folder:
        logdir, trace = pathlib.Path(folder) / "log", pathlib.Path(folder) / "trace.json"
        command = [programs / name, "--adapter", "cpu", "--epochs", str(EPOCHS[name])]
        command += ["--logdir", logdir, "--trace", trace]
        subprocess.run(command, check=True, capture_output=True)
        times = step_times(logdir)
        pairs = [(times[step], times[step + 1]) for step in times if step >= WARMUP and step + 1 in times]
        events = json.loads(trace.read_text())
    device = {}
    for event in events:
        if event["name"] == "device":
            call = event["args"]["step"]
            device[call] = device.get(call, 0) + event["dur"] / 1e3
    step = 1e3 * statistics.median(b - a for a, b in pairs)
    return step, statistics.median(device.values()) if device else float("nan")


def torch(name, python, steps):
    command = [python, HERE / "torch/examples.py", "--only", name, "--threads", "2", "--steps", str(steps)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(printed)["step_ms"]


def others():
    """Returns the seconds of processor time that other processes have taken so far, and the time."""
    stat = pathlib.Path("/proc/stat")
    if not stat.exists():
        return 0.0, time.monotonic()
    user, nice, system, _, _, irq, softirq = map(int, stat.read_text().split("\n")[0].split()[1:8])
    busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in usages), time.monotonic()


def main():
    parser = argparse.ArgumentParser(description="Times examples beside PyTorch, in turns")
    parser.add_argument("--only", choices=EPOCHS, help="time this example alone")
    parser.add_argument("--rounds", type=int, default=5, help="turns to take medians of")
    parser.add_argument("--programs", type=pathlib.Path, default=HERE.parents[1] / "target/release")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="Python with PyTorch")
    flags = parser.parse_args()
    print("example    step    device  PyTorch ratio turns", flush=True)
    for name in [flags.only] if flags.only else EPOCHS:
        steps, devices, peers = [], [], []
        tries = 0
        while len(steps) < flags.rounds and tries < 10 * flags.rounds:
            tries += 1
            before, start = others()
            step, device = own(name, flags.programs)
            peer = torch(name, flags.torch, 200)
            after, end = others()
            if after - before > 0.1 * (end - start):
                time.sleep(5)
                continue
            steps.append(step)
            devices.append(device)
            peers.append(peer)
        if not steps:
            sys.exit(f"{name}: other processes were busy in all of {tries} turns")
        step, device, peer = (statistics.median(times) for times in (steps, devices, peers))
        print(f"{name:<10} {step:7.2f} {device:7.2f} {peer:7.2f} {step / peer:5.2f} {len(steps)}", flush=True)


if __name__ == "__main__":
    main()
