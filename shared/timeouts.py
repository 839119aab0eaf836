"""Time limits of both services: seven settings, what follows from them, and constants.

The table of their meanings is in docs/reliability.md. Limits that exclude each other are refused where both are
known: at a service's start, at a run's start, or, where only the other side knows one of them, when a client joins.
"""

from __future__ import annotations

from dataclasses import dataclass

# A client's settings
TIMEOUT_SECONDS = 30.0  # silence in one step of a call
WAIT_SECONDS = 20.0  # one long poll
CALL_SECONDS = 150.0  # one whole call
POLL_SECONDS = 1.0  # from a call that was answered at once with nothing new to the same one again, at least
# The aggregator's
LONGEST_BODY_SECONDS = 120.0  # a body that comes; at a client's own API this is fixed
SIGNATURE_SECONDS = 60  # by which clocks may differ, and a signed request be late
# A run's
DEADLINE_SECONDS = 3600.0  # one phase of a round

# Both services, for whoever calls
HEAD_SECONDS = 20.0  # for the first line and the headers of a request, and for the first of them after connecting
UNREAD_SECONDS = 5.0  # for the rest of a body that was refused before it was read
HANDSHAKE_SECONDS = 10.0  # for TLS to begin
SILENCE_SECONDS = 30.0  # between two pieces of a body
ANSWER_SECONDS = 600.0  # for taking an answer, from when all of it has been given to the system
KEEP_ALIVE_SECONDS = 15  # for the next request on the same connection; callers such as httpx give it up after 5
GRACE_SECONDS = 5  # for requests under way at a shutdown; long polls are woken and need none
LONGEST_WAIT_SECONDS = 30.0  # of one long poll, whatever was asked for: proxies hang up on what is silent for a minute
RETRY_AFTER_SECONDS = 1  # what a refusal of this moment asks for

# A client's calls
ATTEMPTS = 4  # of one call, all of them safe to repeat; the agent comes back later anyway
RETRY_SECONDS = 15.0  # after which no further attempt begins
PAUSE_SECONDS = 1.0  # at most, after a first failed call; the bound doubles with each further one
AWAY_SECONDS = 30.0  # at most, however many calls have failed, and whatever Retry-After asks for
LONG_PAUSE_SECONDS = 10.0  # at least, after a refusal: somebody has to change something first

# The aggregator's own work
LOOK_SECONDS = 1.0  # the wall's clock, which deadlines are on, may leap, and the disk may refuse: no change tells
DISK_RETRY_SECONDS = 1.0  # after the disk refused, before the next attempt
DATABASE_SECONDS = 5.0  # for another transaction to end
DATABASE_ANSWER_SECONDS = 30.0  # a database server's, for one statement
DATABASE_SILENCE_SECONDS = 10.0  # after which either side of a connection to it asks whether the other is still there
DATABASE_PROBE_SECONDS = 3.0  # between two such questions, of which three are asked
OBJECT_CONNECT_SECONDS = 5.0  # to a store of blobs
OBJECT_SILENCE_SECONDS = 20.0  # of such a store, in the middle of a call
OBJECT_SECONDS = 120.0  # for one blob to come or go, or for all names
NONCE_SECONDS = 0.2  # the same for the nonces, which every call of a client waits for

# What stands around the services
READY_BEAT_SECONDS = 2.0  # between two words of a service that it is ready
READY_SECONDS = 30.0  # for which such a word counts: a busy machine keeps nobody silent for so long
CONNECT_SECONDS = 20.0  # a relay's, to the service behind it
CONNECT_AGAIN_SECONDS = 5.0  # within them: for a service whose name is not known or that refuses, as one that restarts
CONNECT_PAUSE_SECONDS = 0.1  # between two such attempts
IDLE_SECONDS = 300.0  # a relay's, without a byte in one direction


@dataclass(frozen=True)
class CallLimits:
    """Time limits of a client's calls, in seconds.

    timeout: silence in one step. wait: a long poll. call: one whole call with body, wait and answer. poll: least time
    between two calls that were answered at once with nothing new.
    """

    timeout: float = TIMEOUT_SECONDS
    wait: float = WAIT_SECONDS
    call: float = CALL_SECONDS
    poll: float = POLL_SECONDS

    @property
    def longest(self) -> float:
        """Longest time of a call with its retries: the last begins within RETRY_SECONDS."""
        return RETRY_SECONDS + self.call

    def require_possible(self) -> None:
        """Raises ValueError for two limits that exclude each other."""
        if self.wait > LONGEST_WAIT_SECONDS:
            raise ValueError(
                f"wait_seconds: expected at most {LONGEST_WAIT_SECONDS:g}, the longest that an aggregator waits, "
                f"got {self.wait:g}"
            )
        if self.call <= self.wait + self.timeout:
            raise ValueError(
                f"call_seconds: expected more than wait_seconds + timeout_seconds = {self.wait + self.timeout:g}, "
                f"because a long poll and the step after it are one call, got {self.call:g}"
            )

    def list_conflicts(self, *, signature: float | None, deadline: float | None) -> tuple[str, ...]:
        """Lists conflicts with the aggregator's limits, for log and status, one sentence each.

        signature: its signature_seconds. deadline: the run's deadline_seconds. None: not known yet.
        """
        found = []
        if signature is not None and self.timeout >= signature:
            found.append(
                f"timeout_seconds: expected less than the aggregator's signature_seconds = {signature:g}, because a "
                f"request is signed before it connects, got {self.timeout:g}"
            )
        if deadline is not None and self.longest >= deadline:
            found.append(
                f"call_seconds: expected a call with its repetitions ({self.longest:g} s) to take less than the run's "
                f"deadline_seconds = {deadline:g}: one that fails slowly costs this client the round"
            )
        return tuple(found)


def require_deadline_above_body(deadline: float, body: float) -> None:
    """Raises ValueError where a phase may end before an update's longest upload."""
    if deadline <= body:
        raise ValueError(
            f"deadline_seconds: expected more than longest_body_seconds = {body:g}, because an update may take that "
            f"long to come, got {deadline:g}"
        )
