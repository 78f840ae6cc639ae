"""nsqd's TCP protocol: every script of wire_scripts.py gives the same transcript on both daemons."""

import ssl
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from authserver import AuthServer
from wire_scripts import PROFILES, all_scripts
from wirescript import Player, Script, Transcript

from daemons import Daemon, DaemonFailed, Fleet, write_metadata

SCRIPTS = {script.name: script for script in all_scripts()}
TOPICS = {name: f"wire{number:04}x" for number, name in enumerate(SCRIPTS)}
SCRIPTS_AT_A_TIME = 12
assert len(SCRIPTS) == len(all_scripts()), "two scripts have the same name"


class ProfileDaemons:
    """The daemons of one implementation, one for each profile that the selected scripts use."""

    def __init__(self, implementation: str, directory: Path, certificate: tuple[str, str], tls: ssl.SSLContext) -> None:
        self.implementation = implementation
        self.auth_servers: dict[str, AuthServer] = {}
        self._directory = directory
        self._certificate = certificate
        self._tls = tls
        self._fleet = Fleet()
        self._daemons: dict[str, Daemon] = {}
        self._failures: dict[str, DaemonFailed] = {}

    def start(self, profile: str) -> None:
        flags = list(PROFILES[profile])
        if profile.startswith("tls"):
            flags += [f"--tls-cert={self._certificate[0]}", f"--tls-key={self._certificate[1]}"]
        if profile.startswith("auth"):
            self.auth_servers[profile] = AuthServer()
            flags.append(f"--auth-http-address={self.auth_servers[profile].address}")
        data_path = self._directory / f"{self.implementation}-{profile}"
        data_path.mkdir()
        if profile in ("timed", "scanned"):
            names = [TOPICS[name] for name, script in SCRIPTS.items() if script.profile == profile]
            write_metadata(data_path, dict.fromkeys(names, ["ch"]))
        try:
            self._daemons[profile] = self._fleet.nsqd(self.implementation, *flags, data_path=data_path)
        except DaemonFailed as failure:
            self._failures[profile] = failure

    def play(self, script: Script) -> Transcript:
        if script.profile in self._failures:
            raise self._failures[script.profile]
        return Player(self._daemons[script.profile], script, TOPICS[script.name], tls=self._tls).play()

    def close(self) -> None:
        for server in self.auth_servers.values():
            server.close()
        self._fleet.close()


Playing = dict[str, tuple[Future[Transcript], Future[Transcript]]]


@pytest.fixture(scope="module")
def both(
    candidate: str,
    tmp_path_factory: pytest.TempPathFactory,
    certificate: tuple[str, str],
    tls_context: ssl.SSLContext,
) -> Iterator[tuple[ProfileDaemons, ProfileDaemons]]:
    reference = ProfileDaemons("go", tmp_path_factory.mktemp("reference"), certificate, tls_context)
    ours = ProfileDaemons(candidate, tmp_path_factory.mktemp("ours"), certificate, tls_context)
    yield reference, ours
    reference.close()
    ours.close()


@pytest.fixture(scope="module")
def playing(both: tuple[ProfileDaemons, ProfileDaemons], request: pytest.FixtureRequest) -> Iterator[Playing]:
    """Play every selected script on both implementations. Scripts mostly wait, so 12 run at a time."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = {call.params.get("name") for call in calls if call is not None}
    scripts = [each for each in SCRIPTS.values() if each.name in chosen]
    for profile in {script.profile for script in scripts}:
        for daemons in both:
            daemons.start(profile)
    with ThreadPoolExecutor(SCRIPTS_AT_A_TIME) as pool:
        yield {
            script.name: (pool.submit(both[0].play, script), pool.submit(both[1].play, script)) for script in scripts
        }


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_daemons_give_the_same_transcript(name: str, playing: Playing) -> None:
    reference, ours = (future.result() for future in playing[name])
    assert ours == reference


def test_both_daemons_send_the_same_requests_to_the_auth_server(
    both: tuple[ProfileDaemons, ProfileDaemons], playing: Playing
) -> None:
    for futures in playing.values():
        for future in futures:
            future.exception()
    reference, ours = (
        {profile: sorted(server.requests, key=repr) for profile, server in daemons.auth_servers.items()}
        for daemons in both
    )
    if not reference:
        pytest.skip("no auth script was played")
    assert ours == reference
