"""Counters go on where the process that counts becomes another image of itself."""

from __future__ import annotations

from client_service.metrics import ClientMetrics


def test_counters_go_on_from_those_of_an_earlier_image() -> None:
    first, second = ClientMetrics(), ClientMetrics()
    first.rounds.inc(3)
    first.held_up.labels("unavailable").inc(2)
    first.upload_bytes.inc(4096)
    second.restore_counts(first.read_counts())
    second.held_up.labels("unavailable").inc()
    text = second.text().decode()
    assert "lpsfed_client_rounds_total 3.0" in text and "lpsfed_client_upload_bytes_total 4096.0" in text
    assert 'lpsfed_client_held_up_total{code="unavailable"} 3.0' in text


def test_the_time_since_a_round_goes_on_too() -> None:
    first, second = ClientMetrics(), ClientMetrics()
    first.end_round()
    second.restore_counts(first.read_counts())
    ended = [one.value for one in first.read_counts() if one.name == "round_ended"]
    assert ended == [one.value for one in second.read_counts() if one.name == "round_ended"]
