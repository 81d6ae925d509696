"""Citations that are kept, another model over the same texts, alerts, and boxes."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Hit, Index, Retriever, build_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import AveyBError, ConfigError, InputError
from aveyb_retrieval.indexes.changes.sync import sync_index
from aveyb_retrieval.indexes.changes.update import update_metadata
from aveyb_retrieval.indexes.search import alerts as module
from aveyb_retrieval.indexes.search.alerts import (
    Alert,
    add_alert,
    list_alerts,
    remove_alert,
    run_alerts,
)
from aveyb_retrieval.indexes.search.citations import check_citation, read_citation

if TYPE_CHECKING:
    from pathlib import Path

LEASE = (
    "# Lease\n\nThe tenant may end this lease with three months' notice in writing. The deposit is"
    " returned."
)
PUMP = (
    "# Pump\n\nClose the inlet valve before you open the filter. The seal is replaced every 2,000"
    " hours."
)
STAFF = "# Staff\n\nEvery employee has 28 days of leave. Sick notes are due on the third day."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "f"
    made.mkdir()
    for name, text in (("lease.md", LEASE), ("pump.md", PUMP), ("staff.md", STAFF)):
        (made / name).write_text(text)
    build_index(made, tmp_path / "i")
    return made


def citation_of(
    root: Path, question: str = "when may the tenant end the lease"
) -> dict[str, object]:
    with Retriever.load(root) as retriever:
        return json.loads(json.dumps(retriever.search(question, k=1)[0].citation()))


class TestCitations:
    def test_holds_in_the_index_and_in_the_file(self, folder: Path) -> None:
        root, kept = folder.parent / "i", citation_of(folder.parent / "i")
        assert LEASE[slice(*kept["span"])] == kept["quote"]
        for place in (root, folder / "lease.md"):
            checked = check_citation(kept, place)
            assert checked.holds
            assert checked.notes == ()
            assert checked.span == tuple(kept["span"])

    def test_words_that_moved_are_found_and_the_change_is_told(self, folder: Path) -> None:
        kept = citation_of(folder.parent / "i")
        (folder / "lease.md").write_text(LEASE.replace("# Lease\n", "# Lease\n\nA preface.\n"))
        checked = check_citation(kept, folder / "lease.md")
        assert checked.holds
        assert checked.span[0] > kept["span"][0]
        assert checked.notes == ("the original has changed since",)

    def test_changed_words_and_another_index_are_one_line(
        self, folder: Path, tmp_path: Path
    ) -> None:
        kept = citation_of(folder.parent / "i")
        (folder / "lease.md").write_text(LEASE.replace("three", "four"))
        build_index(folder, tmp_path / "other")
        (tmp_path / "c.json").write_text(json.dumps(kept))
        found = CliRunner().invoke(
            main, ["check", str(tmp_path / "other"), "--citation", str(tmp_path / "c.json")]
        )
        assert found.exit_code == 1
        assert len(found.output.splitlines()) == 1
        assert "another index" in found.output
        assert "has changed" in found.output

    @pytest.mark.parametrize(
        "span", [[], [1], ["0", "1"], [0, 1.5], [-3, 1], [0, 1, 2], None, [True, 2]]
    )
    def test_a_span_that_is_none_is_refused_in_one_line(self, folder: Path, span: object) -> None:
        (folder / "c.json").write_text(
            json.dumps({**citation_of(folder.parent / "i"), "span": span})
        )
        with pytest.raises(InputError, match="its 'span' is missing or none"):
            read_citation(folder / "c.json")

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"id": 3}', '{"id": "a", "quote": " ", "span": [0, 1]}']
    )
    def test_what_is_no_citation_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(InputError):
            read_citation(tmp_path / "c.json")

    def test_a_copy_of_a_hit_cites_what_the_hit_does(self, folder: Path) -> None:
        with Retriever.load(folder.parent / "i") as retriever:
            hit = retriever.search("tenant", k=1)[0]
            cited, copied = hit.citation(), pickle.loads(pickle.dumps(hit))
        assert cited["version"]
        assert copied.citation() == cited
        with pytest.raises(ConfigError, match="no search gave this hit"):
            Hit("a", 1.0).citation()
        with (
            pytest.raises(InputError, match="not read from a PDF"),
            Retriever.load(folder.parent / "i") as retriever,
        ):
            retriever.search("tenant", k=1)[0].boxes()


class TestFromAnIndex:
    def test_texts_files_and_edits_are_kept_without_the_files(
        self, folder: Path, tmp_path: Path
    ) -> None:
        root, new = tmp_path / "i", tmp_path / "j"
        update_metadata(root, {"team": "legal"}, ["lease.md"])
        for file in folder.iterdir():
            file.rename(tmp_path / file.name)
        build_index(None, new, from_index=root, granularity="passage")
        with Retriever.load(root) as a, Retriever.load(new) as b:
            pairs = list(zip(a.documents(), b.documents(), strict=True))
            assert all(one == another and one.origin == another.origin for one, another in pairs)
            assert b.granularity == "passage"
        for file in ("lease.md", "pump.md", "staff.md"):
            (tmp_path / file).rename(folder / file)
        assert sync_index(folder, new).unchanged == 3  # hashes of files came along
        update_metadata(new, {}, ["lease.md"], clear=True)
        with Retriever.load(new) as b:
            assert "team" not in b.get(["lease.md"])[0].metadata

    def test_words_are_found_as_there_unless_asked_otherwise(self, tmp_path: Path) -> None:
        build_index(
            [{"_id": "a", "text": "caf\u00e9"}],
            tmp_path / "i",
            keep_accents=True,
            synonyms=["car, auto"],
            language="english",  # French stems take the accent of the word for its ending
        )
        build_index(None, tmp_path / "j", from_index=tmp_path / "i")
        with Retriever.load(tmp_path / "j") as retriever:
            assert not retriever.search("cafe", mode="lexical")
        with pytest.raises(ConfigError, match="leave the corpus"):
            build_index([], tmp_path / "k", from_index=tmp_path / "i")

    def test_what_differs_is_told_beside_what_both_find(self, folder: Path, tmp_path: Path) -> None:
        root, new = tmp_path / "i", tmp_path / "j"
        build_index(None, new, from_index=root, granularity="passage")
        (folder / "new.md").write_text("# New\n\nNobody knows this.")
        sync_index(folder, root)
        done = CliRunner().invoke(main, ["info", str(root), "--compare", str(new), "--json"])
        found = json.loads(done.stdout)
        assert found["differences"]["granularity"] == ["both", "passage"]
        assert found["differences"]["documents"] == [4, 3]
        assert found["missing"] == [[], ["new.md"]]
        assert [row["question"] for row in found["questions"]] == ["Lease", "Pump", "Staff"]
        assert found["questions"][0]["hits"][1][0] == "lease.md"
        (tmp_path / "q.txt").write_text("inlet valve\n\n")
        lines = (
            CliRunner().invoke(main, ["info", str(root), "--compare", str(new)]).stdout.splitlines()
        )
        info = CliRunner().invoke(main, ["info", str(root)]).stdout.splitlines()
        shown = next(line for line in info if line.startswith("characters"))
        assert next(line for line in lines if line.startswith("characters")).startswith(
            f"{shown}  ->  "
        )
        options = ["--compare", str(root), "--questions", str(tmp_path / "q.txt")]
        shown = CliRunner().invoke(main, ["info", str(new), *options]).stdout
        assert f"missing in {new}: new.md" in shown and "inlet valve  (3 in both)" in shown
        (tmp_path / "q.txt").write_text("\n")
        refused = CliRunner().invoke(main, ["info", str(new), *options])
        assert (refused.exit_code, "holds no question" in refused.stderr) == (2, True)


class TestBadAnswers:
    @pytest.mark.parametrize(
        ("data", "said"),
        [(b"a" * ((10 << 20) + 1), "more than 10 MiB"), (b"It says \xff", "byte 8 is not UTF-8")],
        ids=["too large", "no text"],
    )
    def test_an_answer_that_cannot_be_checked_is_a_line(
        self, folder: Path, data: bytes, said: str
    ) -> None:
        (folder.parent / "a.md").write_bytes(data)
        done = CliRunner().invoke(
            main, ["check", str(folder.parent / "i"), str(folder.parent / "a.md")]
        )
        assert (done.exit_code, said in done.stderr, len(done.stderr.splitlines())) == (2, True, 1)

    def test_hundreds_of_quotations_are_all_checked(self, folder: Path) -> None:
        said = (
            "\u201cthree months\u2019 notice in writing\u201d, \u201csix months\u2019 notice in"
            " writing\u201d. "
        )
        with Retriever.load(folder.parent / "i") as retriever:
            checks = retriever.check_quotes(100 * said)
        assert [check.verdict for check in checks] == 100 * ["found", "altered"]

    def test_marks_that_do_not_match_end(self, folder: Path) -> None:
        with Retriever.load(folder.parent / "i") as retriever:
            assert retriever.check_quotes("\u00abinlet \u300cvalve \u2039before " * 300) == []


class TestAlerts:
    def saved(self, folder: Path) -> Path:
        root = folder.parent / "i"
        add_alert(root, Alert("exits", "notice to end a lease", 0.2))
        return root

    def more(self, folder: Path, root: Path) -> None:
        (folder / "flat.md").write_text(
            "# Flat\n\nThe lease of the flat ends with one month's notice in writing."
        )
        sync_index(folder, root)

    def test_only_new_passages_are_told_and_once(self, folder: Path, tmp_path: Path) -> None:
        root, out = self.saved(folder), tmp_path / "out.jsonl"
        assert run_alerts(root, file=out) == ([], [])
        self.more(folder, root)
        new, failed = run_alerts(root, file=out)
        assert [row["id"] for row in new] == ["flat.md"]
        assert not failed
        assert [json.loads(line) for line in out.read_text().splitlines()] == new
        assert run_alerts(root, file=out) == ([], [])
        # changed, not what it says
        (folder / "flat.md").write_text((folder / "flat.md").read_text() + "\n")
        sync_index(folder, root)
        assert len(run_alerts(root, file=out)[0]) == 0

    def test_among_few_documents_it_waits_until_there_are_more(self, tmp_path: Path) -> None:
        """No confidence is known of one or two: what came meanwhile is told once it is."""
        root = tmp_path / "small"
        with Index.create(root) as index:
            index.add([{"_id": "one", "text": "The canteen serves soup on Mondays."}])
            add_alert(root, Alert("exits", "What notice ends the lease of the flat?", 0.5))
            assert run_alerts(root) == ([], [])
            index.add([{"_id": "two", "text": "A month's notice ends the lease of the flat."}])
            assert run_alerts(root) == ([], [])
            index.add([{"_id": "three", "text": "The pump is closed before the filter."}])
            assert [row["id"] for row in run_alerts(root)[0]] == ["two"]
            assert run_alerts(root) == ([], [])

    def test_a_run_killed_while_it_told_is_made_good(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root, out = self.saved(folder), tmp_path / "out.jsonl"
        self.more(folder, root)
        append = module._append

        def killed(name: str, rows: list[dict[str, object]]) -> None:
            append(name, rows)
            raise KeyboardInterrupt

        monkeypatch.setitem(module._TELL, "file", killed)
        with pytest.raises(KeyboardInterrupt):
            run_alerts(root, file=out)
        monkeypatch.setitem(module._TELL, "file", append)
        assert run_alerts(root, file=out) == ([], [])
        assert len(out.read_text().splitlines()) == 1
        out.unlink()
        assert run_alerts(root, file=out) == ([], [])  # and it is over

    def test_a_webhook_that_does_not_answer_is_a_line_and_told_again(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = self.saved(folder)
        self.more(folder, root)
        monkeypatch.setattr(module, "_SECONDS", 0.5)
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            url = f"http://127.0.0.1:{address[1]}/"
            _, (line,) = run_alerts(root, webhook=url)
            assert "\n" not in line
        got: list[object] = []

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None: ...

        monkeypatch.setattr(module, "_SECONDS", 5)
        with HTTPServer(address, Answer) as answering:
            threading.Thread(target=answering.serve_forever, args=(0.01,), daemon=True).start()
            assert run_alerts(root, webhook=url) == ([], [])
            answering.shutdown()
        assert [row["id"] for row in got] == ["flat.md"]

    def test_a_failing_alert_stops_no_sync(self, folder: Path, tmp_path: Path) -> None:
        root = self.saved(folder)
        (root / "alerts.json").write_text("{")
        (folder / "new.md").write_text("One more.")
        found = CliRunner().invoke(main, ["sync", str(folder), "-o", str(root), "--quiet"])
        assert found.exit_code == 0
        assert "damaged" in found.output

    def test_adding_listing_and_removing(self, folder: Path) -> None:
        root = self.saved(folder)
        with pytest.raises(ConfigError, match="there is an alert"):
            self.saved(folder)
        with pytest.raises(ConfigError, match="0 to 1"):
            add_alert(root, Alert("more", "x", 2))
        assert [each.name for each in list_alerts(root)] == ["exits"]
        remove_alert(root, "exits")
        assert list_alerts(root) == []
        with pytest.raises(AveyBError):
            list_alerts(folder)


class TestBoxes:
    def test_one_rectangle_a_line_on_each_page(self, tmp_path: Path) -> None:
        canvas = pytest.importorskip("reportlab.pdfgen.canvas")
        made = tmp_path / "f"
        made.mkdir()
        page = canvas.Canvas(str(made / "m.pdf"), pagesize=(595, 842))
        page.drawString(72, 700, "The relief valve of the boiler opens at")
        page.drawString(72, 680, "a pressure of 12.5 bar, and not below.")
        page.save()
        build_index(made, tmp_path / "i")
        with Retriever.load(tmp_path / "i") as retriever:
            hit = retriever.search("relief valve", unit="passage", k=1)[0]
            first, second = hit.boxes()
            assert first.page == second.page == 1
            assert 690 < first.bottom < first.top < 715
            assert 670 < second.bottom < second.top < 695
            (made / "m.pdf").write_bytes((made / "m.pdf").read_bytes() + b"\n")
            with pytest.raises(InputError, match="has changed since"):
                hit.boxes()
