"""Producer ids: each is given out once, whatever crashes."""

import asyncio

from headrace.broker.store import Store
from headrace.broker.transactions import table

BLOCK = 1000


class ProducerIds:
    """Gives out ids from a block reserved in the store; what a crash leaves of a block is never used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._reserving = asyncio.Lock()

    async def allocate(self) -> int:
        """A producer id that was never given out. Raises StoreError."""
        async with self._reserving:
            if self._next == self._end:
                first = await self._store.write(lambda connection: table.reserve_producer_ids(connection, BLOCK))
                self._next, self._end = first, first + BLOCK
            allocated = self._next
            self._next += 1
            return allocated
