"""What an examination says: findings in plain words, and what can be done about each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. ``code`` is for programs, ``what`` and ``advice`` are for people."""

    code: str
    name: str
    """The file it is about."""
    what: str
    advice: str
    is_repairable: bool = True


@dataclass(slots=True)
class DoctorReport:
    """An examination of a data directory; ``repairs`` says what was done, if anything was."""

    data_path: str
    topic_count: int = 0
    queue_count: int = 0
    message_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    set_aside_in: str = ""

    @property
    def is_sound(self) -> bool:
        """True if there is nothing to say."""
        return not self.findings
