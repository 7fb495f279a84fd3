"""Markers on their way to the topics they stand beside."""

from collections.abc import Iterable

from headrace.config.run import RunConfig
from headrace.delivery.producers import RecordProducer
from headrace.engine.run.heartbeats import Heartbeats, Marker, markers_of
from headrace.errors import KafkaError

__all__ = ["MarkerWriter"]


class MarkerWriter:
    """Connects when there is something to write. A marker that is lost is made up for by the next."""

    def __init__(self, config: RunConfig, app: str) -> None:
        self._config = config
        self._app = app
        self._producer: RecordProducer | None = None

    def write(self, heartbeats: Heartbeats, markers: Iterable[Marker]) -> None:
        sent = list(markers)
        if not sent:
            return
        try:
            if self._producer is None:
                self._producer = RecordProducer(self._config)
            for marker in sent:
                reader = f"{self._app}.{marker.reader}"
                self._producer.send_record(markers_of(marker.topic), reader.encode(), marker.time.isoformat().encode())
            self._producer.flush()
        except KafkaError:
            self.close()
            for marker in sent:
                heartbeats.forget(marker)

    def close(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.close()
