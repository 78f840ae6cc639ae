"""The log lines of a broker: topic, channel and message id in columns."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

_MESSAGE_ID_WIDTH = 16


class NSQLoggerStorage(DefaultLoggerStorage):
    """Creates the logger of a broker when its subscribers are known, because their names set the column widths."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": len("topic"), "channel": len("channel")}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns to the names of a subscriber."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger."""
        logger: logging.Logger | None = self._get_logger_ref()
        if logger is None:
            columns = [f"%({name})-{width}s | " for name, width in self._widths.items()]
            logger = get_broker_logger(
                name="nsq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=_MESSAGE_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - {''.join(columns)}%(message_id)-{_MESSAGE_ID_WIDTH}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


nsq_logger_state = partial(make_logger_state, default_storage_cls=NSQLoggerStorage)
