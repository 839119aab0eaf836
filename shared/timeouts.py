"""Time limits of both services: seven settings, what follows from them, and constants.

The table of their meanings is in docs/reliability.md. Limits that exclude each other are refused where both are
known: at a service's start, at a run's start, or, where only the other side knows one of them, when a client joins.
"""

from __future__ import annotations

from dataclasses import dataclass

# A client's settings
TIMEOUT_SECONDS = 30.0  # longest silence in one step of a call
WAIT_SECONDS = 20.0  # longest wait of one long poll
CALL_SECONDS = 150.0  # longest time of one whole call
POLL_SECONDS = 1.0  # shortest time between two equal calls without news
# The aggregator's
LONGEST_BODY_SECONDS = 120.0  # longest time of an upload's body; at a client's own API this is fixed
SIGNATURE_SECONDS = 60  # largest difference of clocks, and delay of a signed request
# A run's
DEADLINE_SECONDS = 3600.0  # longest wait in one phase of a round

# Both services, for every caller
HEAD_SECONDS = 20.0  # longest time for a request's head, and for its first byte after connecting
UNREAD_SECONDS = 5.0  # longest time to discard the rest of a body that was refused unread
HANDSHAKE_SECONDS = 10.0  # longest TLS handshake
SILENCE_SECONDS = 30.0  # longest time between two pieces of a body
ANSWER_SECONDS = 600.0  # longest time for a caller to read an answer, after the system has all of it
KEEP_ALIVE_SECONDS = 15  # longest idle time of a connection; callers such as httpx close it after 5
GRACE_SECONDS = 5  # longest time for open requests at a shutdown; long polls end at once
LONGEST_WAIT_SECONDS = 30.0  # upper bound of every long poll: proxies close a connection that is silent for a minute
BEAT_SECONDS = 20.0  # longest time between two events of a held stream: proxies close a silent connection
STREAM_SECONDS = 3600.0  # longest time of a held stream, which its client then resumes; less by up to a fifth
RETRY_AFTER_SECONDS = 1  # Retry-After of a temporary refusal

# A client's calls
ATTEMPTS = 4  # attempts of one call, which is safe to repeat; the agent calls again later anyway
RETRY_SECONDS = 15.0  # time after which no further attempt begins
PAUSE_SECONDS = 1.0  # longest pause after a first failed call; each further failure doubles it
LONGEST_PAUSE_SECONDS = 30.0  # upper bound of that pause, and of a Retry-After that is obeyed
LOST_BEATS = 2.5  # heart-beats without which a client gives up a held stream, and polls
STREAM_PAUSE_SECONDS = 10.0  # longest pause after a first lost stream; each further one doubles it, up to an hour
LONG_PAUSE_SECONDS = 10.0  # shortest pause after a refusal that lasts until an operator changes something

# The aggregator's own work
ROUND_CHECK_SECONDS = 1.0  # time between two checks of deadline and disk: a clock's leap or a full disk sends no event
DISK_RETRY_SECONDS = 1.0  # pause after the disk refused, before the next attempt
DATABASE_SECONDS = 5.0  # longest wait for another transaction to end
STALL_SECONDS = 5.0  # silence of a worker's session after which another worker takes its place
WORKER_BEAT_SECONDS = 1.0  # time between two signs of life of a worker's session
DATABASE_ANSWER_SECONDS = 30.0  # longest time of a database server for one statement
DATABASE_SILENCE_SECONDS = 10.0  # silence after which either side of a database connection sends a keep-alive probe
DATABASE_PROBE_SECONDS = 3.0  # time between two keep-alive probes; three without an answer end the connection
OBJECT_CONNECT_SECONDS = 5.0  # longest time to connect to a store of blobs
OBJECT_SILENCE_SECONDS = 20.0  # longest silence of that store during a call
OBJECT_SECONDS = 120.0  # longest transfer of one blob, or of the list of names
NONCE_SECONDS = 0.2  # longest wait of the nonces for another transaction: every call of a client waits for it

# Health checks and relays
READY_BEAT_SECONDS = 2.0  # time between two writes of the ready file
READY_SECONDS = 30.0  # time for which the ready file counts; longer than a pause of a busy machine
CONNECT_SECONDS = 20.0  # longest time of a relay to connect to its service
CONNECT_AGAIN_SECONDS = 5.0  # part of it for a service whose name is unknown or that refuses, such as one that restarts
CONNECT_PAUSE_SECONDS = 0.1  # pause between two such attempts
IDLE_SECONDS = 300.0  # longest time of a relay's connection without a byte in one direction


@dataclass(frozen=True)
class CallLimits:
    """Time limits of a client's calls, in seconds.

    timeout: silence in one step. wait: a long poll. call: one whole call with body, wait and answer. poll: shortest
    time between two equal calls without news.
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
    """Raises ValueError if a phase may end before an update's longest upload."""
    if deadline <= body:
        raise ValueError(
            f"deadline_seconds: expected more than longest_body_seconds = {body:g}, because an update may take that "
            f"long to come, got {deadline:g}"
        )
