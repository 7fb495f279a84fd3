"""Share sessions: which partitions a member fetches, told by what changed since its last request."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.broker.errors import ApiError, ErrorCode
from headrace.broker.groups.share.assignor import Place

OPENING, CLOSING = 0, -1
_HIGHEST_EPOCH = 2**31 - 1

SessionKey = tuple[str, str]
"""Group and member."""


@dataclass(slots=True, eq=False)
class Session:
    key: SessionKey
    connection: int
    epoch: int = 1
    places: dict[Place, bool] = field(default_factory=dict)
    """The partitions, and whether the member has yet to be told anything about each."""

    def change(self, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        for place in added:
            self.places.setdefault(place, True)
        for place in forgotten:
            self.places.pop(place, None)


class Sessions:
    def __init__(self, most: int) -> None:
        self._most = most
        self._sessions: dict[SessionKey, Session] = {}
        self._of_connection: dict[int, set[SessionKey]] = {}

    def open(self, key: SessionKey, connection: int) -> Session:
        self.end(key)
        if len(self._sessions) >= self._most:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[key] = Session(key, connection)
        self._of_connection.setdefault(connection, set()).add(key)
        return session

    def next(self, key: SessionKey, epoch: int) -> Session:
        """The session of a request that continues it."""
        session = self._require(key)
        if epoch != session.epoch:
            raise ApiError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"the session's epoch is {session.epoch}, not {epoch}"
            )
        session.epoch = 1 if epoch == _HIGHEST_EPOCH else epoch + 1
        return session

    def close(self, key: SessionKey) -> Session:
        """The session of a request that is its last."""
        session = self._require(key)
        self.end(key)
        return session

    def end(self, key: SessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._of_connection[session.connection]
            keys.discard(key)
            if not keys:
                del self._of_connection[session.connection]

    def connection_closed(self, connection: int) -> list[SessionKey]:
        """End the sessions of a connection; those that are over are returned."""
        keys = sorted(self._of_connection.get(connection, ()))
        for key in keys:
            self.end(key)
        return keys

    def of_group(self, group_id: str) -> list[SessionKey]:
        return [key for key in self._sessions if key[0] == group_id]

    def _require(self, key: SessionKey) -> Session:
        session = self._sessions.get(key)
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session
