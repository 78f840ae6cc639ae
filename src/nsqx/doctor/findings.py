"""The result of an examination: findings with a description and advice."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. ``code`` is for programs, ``what`` and ``advice`` are for people."""

    code: str
    name: str
    """The file that it is about."""
    what: str
    advice: str
    is_repairable: bool = True


@dataclass(slots=True)
class DoctorReport:
    """The examination of a data directory; ``repairs`` lists the actions of a repair."""

    data_path: str
    topic_count: int = 0
    queue_count: int = 0
    message_count: int = 0
    log_count: int = 0
    log_message_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    set_aside_in: str = ""

    @property
    def is_sound(self) -> bool:
        """True if there are no findings."""
        return not self.findings
