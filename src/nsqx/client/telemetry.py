"""placeholder"""
from typing import Any
class ProducerTelemetry:
    def published(self, topic: str, count: int, size: int, future: Any) -> None: ...
