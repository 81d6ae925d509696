"""Citations that are kept, another model over the same texts, alerts, and boxes."""

from __future__ import annotations

import hashlib
import json
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from aveyb_retrieval import Hit, Index, Retriever, build_index
from aveyb_retrieval.cli.index import main
from aveyb_retrieval.errors import AveyBError, ConfigError, InputError
from aveyb_retrieval.indexes.changes.sync import sync_index
from aveyb_retrieval.indexes.search import alerts
from aveyb_retrieval.indexes.search.alerts import (
    Alert,
    add_alert,
    append_rows,
    list_alerts,
    remove_alert,
    run_alerts,
)
from aveyb_retrieval.indexes.search.citations import check_citation, read_citation
from tests import one_change

if TYPE_CHECKING:
    from collections.abc import Sequence
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


def ignore(rows: Sequence[dict[str, Any]]) -> None:
    """Take rows, and do nothing with them."""


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

    def test_labels_are_no_part_of_the_original(self, folder: Path, tmp_path: Path) -> None:
        """Neither those of the path nor those of `metadata.csv`."""
        (folder / "metadata.csv").write_text("path,year\n*.md,2024\n")
        (folder / "hr").mkdir()
        (folder / "lease.md").rename(folder / "hr" / "lease.md")
        build_index(folder, tmp_path / "labelled", path_fields="{team}/*")
        with Retriever.load(tmp_path / "labelled") as retriever:
            (document,) = retriever.get(["hr/lease.md"])
            (check,) = retriever.check_quotes('It says "with three months\' notice in writing".')
        assert (document.metadata["team"], document.metadata["year"]) == ("hr", 2024)
        assert check.sha256 == hashlib.sha256(LEASE.encode()).hexdigest()
        checked = check_citation(citation_of(tmp_path / "labelled"), folder / "hr" / "lease.md")
        assert checked.holds and checked.notes == ()

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
        with pytest.raises(InputError, match="its 'span' is missing or invalid"):
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
        one_change.update_metadata(root, {"team": "legal"}, ["lease.md"])
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
        one_change.update_metadata(new, {}, ["lease.md"], clear=True)
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
        deliver = partial(append_rows, out)
        assert run_alerts(root, deliver) == []
        self.more(folder, root)
        new = run_alerts(root, deliver)
        assert [row["id"] for row in new] == ["flat.md"]
        assert [json.loads(line) for line in out.read_text().splitlines()] == new
        assert run_alerts(root, deliver) == []
        # changed, not what it says
        (folder / "flat.md").write_text((folder / "flat.md").read_text() + "\n")
        sync_index(folder, root)
        assert run_alerts(root, deliver) == []

    def test_among_few_documents_it_waits_until_there_are_more(self, tmp_path: Path) -> None:
        """No confidence is known of one or two: what came meanwhile is told once it is."""
        root = tmp_path / "small"
        with Index.create(root) as index:
            index.add([{"_id": "one", "text": "The canteen serves soup on Mondays."}])
            add_alert(root, Alert("exits", "What notice ends the lease of the flat?", 0.5))
            assert run_alerts(root, ignore) == []
            index.add([{"_id": "two", "text": "A month's notice ends the lease of the flat."}])
            assert run_alerts(root, ignore) == []
            index.add([{"_id": "three", "text": "The pump is closed before the filter."}])
            assert [row["id"] for row in run_alerts(root, ignore)] == ["two"]
            assert run_alerts(root, ignore) == []

    def test_all_passages_that_answer_are_told_however_many(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(alerts, "_PASSAGES_PER_SEARCH", 3)
        root, notice = tmp_path / "many", "A month's notice ends the lease of flat"
        with Index.create(root) as index:
            index.add([{"_id": f"old{i}", "text": f"Soup of day {i}."} for i in range(4)])
            add_alert(root, Alert("exits", "What notice ends the lease?", 0.0))
            index.add([{"_id": f"new{i}", "text": f"{notice} {i}."} for i in range(20)])
            told = [row["id"] for row in run_alerts(root, ignore)]
        assert sorted(told) == sorted(f"new{i}" for i in range(20))

    def test_a_run_killed_while_it_delivered_is_made_good(
        self, folder: Path, tmp_path: Path
    ) -> None:
        root, out = self.saved(folder), tmp_path / "out.jsonl"
        self.more(folder, root)

        def killed(rows: Sequence[dict[str, Any]]) -> None:
            append_rows(out, rows)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_alerts(root, killed)
        assert len(run_alerts(root, partial(append_rows, out))) == 1
        assert len(out.read_text().splitlines()) == 1
        out.unlink()
        assert run_alerts(root, partial(append_rows, out)) == []  # and it is over
        assert not out.exists()

    def test_rows_that_nobody_took_are_delivered_again(self, folder: Path, tmp_path: Path) -> None:
        root = self.saved(folder)
        self.more(folder, root)
        with pytest.raises(OSError, match="missing"):
            run_alerts(root, partial(append_rows, tmp_path / "missing" / "out.jsonl"))
        assert [row["id"] for row in run_alerts(root, ignore)] == ["flat.md"]
        assert run_alerts(root, ignore) == []

    def test_a_command_prints_lines_once(self, folder: Path) -> None:
        root = self.saved(folder)
        self.more(folder, root)
        first, second = (CliRunner().invoke(main, ["alerts", "run", str(root)]) for _ in range(2))
        (line,) = first.stdout.splitlines()
        row = json.loads(line)
        assert (row["name"], row["id"], "one month" in row["text"]) == ("exits", "flat.md", True)
        assert (second.exit_code, second.stdout) == (0, "")

    def test_a_sync_leaves_them_for_it_unless_a_file_is_named(
        self, folder: Path, tmp_path: Path
    ) -> None:
        root = self.saved(folder)
        (folder / "flat.md").write_text("# Flat\n\nOne month's notice ends the lease of the flat.")
        done = CliRunner().invoke(main, ["sync", str(folder), "-o", str(root), "--quiet"])
        assert "alert" not in done.output
        broken = tmp_path / "no" / "out.jsonl"
        options = ["-o", str(root), "--quiet", "--alerts"]
        done = CliRunner().invoke(main, ["sync", str(folder), *options, str(broken)])
        assert (done.exit_code, "alerts: " in done.stderr) == (0, True)
        done = CliRunner().invoke(main, ["sync", str(folder), *options, str(tmp_path / "out")])
        assert "alert exits: flat.md" in done.stdout
        assert len((tmp_path / "out").read_text().splitlines()) == 1

    def test_a_failing_alert_stops_no_sync(self, folder: Path, tmp_path: Path) -> None:
        root, out = self.saved(folder), str(folder.parent / "out.jsonl")
        (root / "alerts.json").write_text("{")
        (folder / "new.md").write_text("One more.")
        command = ["sync", str(folder), "-o", str(root), "--quiet", "--alerts", out]
        found = CliRunner().invoke(main, command)
        assert found.exit_code == 0
        assert "damaged" in found.output

    def test_adding_listing_and_removing(self, folder: Path) -> None:
        root = self.saved(folder)
        with pytest.raises(ConfigError, match="exists already"):
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
