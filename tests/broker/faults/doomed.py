"""A broker process that kills itself at a given operation of its disk: python -m tests.broker.faults.doomed DIR N"""

import asyncio
import logging
import sys
from pathlib import Path

from headrace.broker.server import Broker
from tests.broker.faults.faulty import Countdown, FaultyDisk, die
from tests.broker.faults.harness import AGING


async def _main(data: Path, number: int) -> None:
    broker = Broker(data, settings=AGING, disk=FaultyDisk(Countdown(number, die)))
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
