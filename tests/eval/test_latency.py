"""Latency is measured with a clock that the test controls."""

from __future__ import annotations

import pytest

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.eval.runner import measure, read_query_texts


def test_times_by_a_known_clock():
    now = 0.0
    seen = []

    def search(texts):
        nonlocal now
        seen.append(list(texts))
        now += 0.010 if len(seen) <= 2 else 0.001 * (len(seen) - 2)  # warm-up is slow, then 1, 2, 3, 4 ms

    row = measure(search, ["a", "b", "c"], batch=2, calls=4, warmup=2, clock=lambda: now)
    assert seen == [["a", "b"], ["c", "a"], ["a", "b"], ["c", "a"], ["b", "c"], ["a", "b"]]
    assert row.mean_ms == pytest.approx(2.5)
    assert row.p50_ms == pytest.approx(2.5)
    assert row.max_ms == pytest.approx(4.0)
    assert row.queries_per_second == pytest.approx(8 / 0.010)


def test_bad_arguments():
    with pytest.raises(ConfigError, match=r"at least 1"):
        measure(lambda texts: None, ["a"], batch=0)
    with pytest.raises(InputError, match=r"no queries"):
        measure(lambda texts: None, [])


def test_query_files(tmp_path):
    (tmp_path / "q.txt").write_text("one\n\ntwo\n")
    assert read_query_texts(tmp_path / "q.txt") == ["one", "two"]
    (tmp_path / "q.jsonl").write_text('{"_id": "1", "text": "one"}\n')
    assert read_query_texts(tmp_path / "q.jsonl") == ["one"]
    (tmp_path / "bad.jsonl").write_text('{"_id": "1"}\n')
    with pytest.raises(InputError, match=r"line 1: expected an object with a 'text' field"):
        read_query_texts(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"line 1: not JSON"):
        read_query_texts(tmp_path / "bad.jsonl")
    with pytest.raises(InputError, match=r"no such file"):
        read_query_texts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match=r"no queries"):
        read_query_texts(tmp_path / "empty.txt")
