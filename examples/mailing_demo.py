"""A queue at work: mails are sent, workers are killed with SIGKILL all the time, and at the end all of it is counted.

The app is examples/mailing.py, on an embedded broker. Three processes of `headrace work` take the mails; now and then
one of them is killed and started anew. A part of the mails is delayed, and a part has no valid address. The demo fails
unless every valid mail was sent, every invalid one is a dead letter with its reason, and nothing else happened.

Run it with `python examples/mailing_demo.py --mails 2000`.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mailing import app, mails, sent

FILE = Path(__file__).with_name("mailing.py")
WORKERS = 3
LIMIT = 240.0


def headrace(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *words]


def start(home: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(headrace("work", str(FILE), "--home", home), stderr=subprocess.DEVNULL)


def counted() -> tuple[set[str], int, dict[str, str]]:
    """The ids of the mails that were sent, how many results there are, and the dead letters with their reasons."""
    results = [record.row["message_id"] for record in app.read(sent)]
    letters = {}
    for record in app.read(mails.topic_name + ".dead"):
        said = {name: (value or b"").decode() for name, value in record.headers}
        letters[said["headrace-id"]] = said["headrace-reason"]
    return set(results), len(results), letters


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mails", type=int, default=2000)
    count = parser.parse_args().mails
    app.topic("dead", "address STRING, text STRING", topic=f"{mails.topic_name}.dead")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HEADRACE_HOME"] = home
        subprocess.run(headrace("up", "--home", home), check=True, stdout=subprocess.DEVNULL)
        subprocess.run(headrace("topics", "create", sent.topic_name), check=True, stdout=subprocess.DEVNULL)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            good, bad = set(), set()
            with mails.sender() as sender:
                for number in range(count):
                    is_bad = number % 50 == 7
                    row = {"address": f"user{number}" + ("" if is_bad else "@example.org"), "text": "Hello"}
                    delay = f"{random.randrange(5000)} ms" if number % 10 == 0 else None
                    (bad if is_bad else good).add(sender.send(row, delay=delay).result())
            print(f"{count} mails are in the queue: {len(good)} valid, {len(bad)} not; {count // 10} of them delayed")
            workers = [start(home) for _ in range(WORKERS)]
            kills = 0
            deadline = time.monotonic() + LIMIT
            while True:
                time.sleep(1.5)
                done, results, letters = counted()
                print(f"  {len(done)} sent, {len(letters)} dead letters, {kills} workers killed", flush=True)
                if len(done) >= len(good) and len(letters) >= len(bad):
                    break
                if time.monotonic() > deadline:
                    print(f"failed: not done within {LIMIT:.0f} s")
                    return 1
                victim = random.randrange(WORKERS)
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = start(home)
                kills += 1
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
            subprocess.run(headrace("down", "--home", home), check=True, stdout=subprocess.DEVNULL)
    problems = []
    if done != good:
        problems.append(f"{len(good - done)} valid mails were lost, and {len(done - good)} unknown ones were sent")
    if set(letters) != bad:
        problems.append(
            f"{len(bad - set(letters))} invalid mails are missing, {len(set(letters) - bad)} are wrongly dead"
        )
    if any("is not an address" not in reason for reason in letters.values()):
        problems.append("a dead letter has another reason than its address")
    for problem in problems:
        print(f"failed: {problem}")
    if not problems:
        print(
            f"all counts agree: {len(done)} sent, {len(letters)} dead letters; {kills} workers were killed, and "
            f"{results - len(done)} mails were sent again for it"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
