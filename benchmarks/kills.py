"""Kills a render again and again, and compares what comes out with an undisturbed one.

    python benchmarks/kills.py [--n 200] [--kills 10] [--seed 0]

The whole process tree gets SIGKILL at random moments of the render, each time the same
command continues it; at the end every array must equal that of a render left in peace.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py

from threedident.shards import ARRAYS, list_shards

RENDER = [str(Path(sys.executable).with_name("3dident")), "render", "--resolution", "112"]


def digest(root: Path) -> str:
    """Of all arrays, in order, whatever the shards."""
    total = hashlib.sha256()
    for name in ARRAYS:
        for path in list_shards(root).values():
            with h5py.File(path) as file:
                total.update(file[name][()].tobytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [*RENDER, "--n", str(arguments.n), "--shard-size", "10", "--out"]
        start = time.monotonic()
        subprocess.run([*command, f"{folder}/calm"], check=True, capture_output=True)
        whole = time.monotonic() - start
        print(f"undisturbed: {whole:.1f} s", flush=True)
        for kill in range(arguments.kills):
            process = subprocess.Popen(
                [*command, f"{folder}/killed"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # Long enough to get something done: starting Blender alone takes two seconds.
            after = moments.uniform(1.0, 2 * whole / arguments.kills + 3.0)
            time.sleep(after)
            ended = process.poll() is not None
            if not ended:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            have = (
                sum(i.count for i in list_shards(Path(folder, "killed")))
                if Path(folder, "killed").exists()
                else 0
            )
            what = "had finished" if ended else f"killed after {after:.2f} s"
            print(f"{kill + 1}: {what}, {have} images in shards", flush=True)
        subprocess.run([*command, f"{folder}/killed"], check=True, capture_output=True)
        subprocess.run([RENDER[0], "verify", f"{folder}/killed"], check=True, capture_output=True)
        same = digest(Path(folder, "calm")) == digest(Path(folder, "killed"))
        print(f"bit-identical to the undisturbed render: {same}")
        left = [p.name for p in Path(folder, "killed").iterdir() if p.name.startswith(".tmp")]
        print(f"temporary files left: {len(left)}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
