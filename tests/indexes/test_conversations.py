"""Of mails of one conversation the newest statement stands first; it names the older ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aveyb_retrieval import Retriever, build_index, hits_to_prompt
from aveyb_retrieval.encoder.text.passages import PassageSize, cut_passages
from aveyb_retrieval.encoder.text.quoting import Repetition, repeat_starts, repetitions
from aveyb_retrieval.indexes.search import conversations
from aveyb_retrieval.indexes.search.conversations import MATCHES_TOGETHER, Conversations
from aveyb_retrieval.indexes.search.matches import Matches
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from tests import one_change
from tests.recorder import record_calls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aveyb_retrieval.indexes.types import IntArray

QUESTION = "When does the ferry to Skagen leave?"


def quoted(sender: str, text: str) -> str:
    lines = "\n".join(f"> {line}" for line in text.splitlines())
    return f"On Mon, 4 May 2026 at 9:12 {sender} wrote:\n\n{lines}"


def mail(number: int, text: str, thread: str = "a@x", sender: str = "Ada <ada@example.org>") -> Any:
    date = f"2026-05-{number:02}T08:00:00+00:00"
    head = f"From: {sender}\nDate: {date}"
    about = {"type": "mail", "thread": thread, "date": date, "from": sender}
    return {"_id": f"m{number}", "title": "Ferry", "text": f"{head}\n\n{text}\n", **about}


FIRST = "The ferry to Skagen leaves at 14:20 from pier 3."
SECOND = "The ferry to Skagen now leaves at 16:45 from pier 3."
MAILS = [
    mail(4, FIRST),
    mail(6, f"Thank you.\n\n{quoted('Ada', FIRST)}"),
    mail(9, f"{SECOND}\n\n{quoted('Ada', FIRST)}"),
    mail(12, f"See you there.\n\n{quoted('Ada', SECOND)}"),
    mail(14, "The canteen opens at noon.", thread="b@x"),
    mail(15, "The gate has code 4471.", thread="c@x"),
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    path = tmp_path_factory.mktemp("mails") / "index"
    build_index(MAILS, path)
    return Retriever.load(path)


@pytest.mark.parametrize("unit", ["document", "passage"])
def test_the_newest_statement_leads_and_names_the_others(retriever: Retriever, unit: Any) -> None:
    first, second, *_ = retriever.search(QUESTION, k=6, unit=unit)
    assert (first.id, first.earlier) == ("m9", ("m4",))
    assert {"m6", "m12"} <= {*first.duplicates}
    assert second.id not in ("m4", "m6") or unit == "passage"
    assert first.text[slice(*first.best_sentence)].endswith("16:45 from pier 3.")
    assert first.score >= second.score
    assert first.passage is not None
    assert "14:20" not in first.passage


@pytest.mark.parametrize("title", ["Ferry", "When does the ferry to Skagen leave?"])
def test_a_conversation_is_told_with_a_copy_of_its_newest_mail(tmp_path: Path, title: str) -> None:
    copy = {"_id": "copy", "title": title, "text": MAILS[2]["text"]}
    build_index([*MAILS, copy], tmp_path / "i")
    first, *others = Retriever.load(tmp_path / "i").search(QUESTION, k=6)
    assert {first.id, *first.duplicates} >= {"m9", "copy"}
    assert first.earlier == ("m4",)
    assert {"m6", "m12"} <= {*first.duplicates}
    assert not {"m4", "m6", "m9", "m12", "copy"} & {hit.id for hit in others}


def test_each_mail_is_shown_where_nothing_is_folded(retriever: Retriever) -> None:
    hits = retriever.search(QUESTION, k=6, fold=False)
    assert {hit.id for hit in hits} == {f"m{n}" for n in (4, 6, 9, 12, 14, 15)}
    assert all(not hit.earlier for hit in hits)


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
def test_pages_are_slices_of_one_ranking(retriever: Retriever, mode: Any) -> None:
    whole = retriever.search(QUESTION, k=6, mode=mode)
    parts = [hit for n in range(6) for hit in retriever.search(QUESTION, k=1, offset=n, mode=mode)]
    assert [hit.id for hit in parts] == [hit.id for hit in whole]


def test_a_page_of_one_chunk_takes_no_other_part_of_the_ranking() -> None:
    parts: list[int] = []
    read: list[int] = []

    def ranking() -> Iterator[Matches]:
        for first in range(0, 5 * MATCHES_TOGETHER, MATCHES_TOGETHER):
            parts.append(first)
            docs = np.arange(first, first + MATCHES_TOGETHER)
            yield Matches.of_documents(docs, np.ones(len(docs)))

    def threads(docs: IntArray) -> IntArray:
        read.extend(docs.tolist())
        return 2 * docs + 2  # of a conversation each

    view = SimpleNamespace(threads=threads)
    evidence: Any = SimpleNamespace(options=SimpleNamespace(fold=True), view=view)
    folded = Conversations(evidence, None).folded(ranking())
    for count in (1, 2, 3):
        chunk = next(folded)
        assert chunk.docs[0] == (count - 1) * MATCHES_TOGETHER
        assert len(parts) == count
    assert sum(len(chunk) for chunk in folded) == 2 * MATCHES_TOGETHER
    assert read == [*range(5 * MATCHES_TOGETHER)]


def test_chunks_are_the_same_however_the_ranking_is_parted() -> None:
    docs = np.arange(3 * MATCHES_TOGETHER + 7)
    view = SimpleNamespace(threads=lambda docs: 2 * docs + 2)
    evidence: Any = SimpleNamespace(options=SimpleNamespace(fold=True), view=view)

    def sizes(part_size: int) -> list[int]:
        parts = (docs[start : start + part_size] for start in range(0, len(docs), part_size))
        ranking = (Matches.of_documents(part, np.ones(len(part))) for part in parts)
        return [len(chunk) for chunk in Conversations(evidence, None).folded(ranking)]

    assert sizes(1000) == sizes(7) == sizes(MATCHES_TOGETHER) == [MATCHES_TOGETHER] * 3 + [7]


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
def test_passages_that_the_ranking_scored_are_not_scored_again(
    retriever: Retriever, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score_passages(evidence: object, numbers: object) -> None:
        raise AssertionError(f"scored again: {numbers}")

    monkeypatch.setattr(conversations, "score_passages", score_passages)
    first, *_ = retriever.search(QUESTION, k=6, mode=mode)
    assert (first.id, first.earlier) == ("m9", ("m4",))


def test_questions_read_the_metadata_of_mails_once(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = record_calls(monkeypatch, Snapshot, "documents")
    retriever.search([QUESTION, QUESTION.lower(), "ferry to Skagen"], k=6, mode="lexical")
    read = [doc for call in reads if "metadata" in call["parts"] for doc in call["docs"]]
    assert sorted(read) == sorted(set(read))
    assert read


def test_nothing_is_folded_of_what_only_quotations_say(tmp_path: Path) -> None:
    lost = "The permit of the weir has number 8812."
    mails = [mail(n, f"Agreed.\n\n{quoted('Eva', lost)}") for n in (4, 5)]
    build_index([*mails, *MAILS[-2:]], tmp_path / "i")
    hits = Retriever.load(tmp_path / "i").search("which number has the permit of the weir?", k=2)
    assert {hit.id for hit in hits} == {"m4", "m5"}
    assert all("8812" in hit.text[slice(*hit.best_sentence)] for hit in hits)


def test_other_documents_of_a_thread_are_not_mails(tmp_path: Path) -> None:
    posts = [{**each, "type": "post"} for each in MAILS]
    build_index(posts, tmp_path / "i")
    assert all(not hit.earlier for hit in Retriever.load(tmp_path / "i").search(QUESTION, k=6))


def test_what_a_mail_repeats_are_passages_of_their_own() -> None:
    text = f"From: Ada\nTo: Bob\n\nYes.\n\n{quoted('Bob', 'Is it true?')}\n\n-- \nAda, 555\n"
    offsets = [(n, n + 1) for n in range(len(text))]
    cuts = cut_passages(text, np.array(offsets), PassageSize(1000))
    parts = [text[start:stop] for start, stop in cuts.spans.tolist()]
    assert [part.split()[0] for part in parts] == ["From:", "On", "--"]
    assert repetitions("Re: Ferry", text, cuts.spans).tolist() == [
        Repetition.OWN,
        Repetition.QUOTED,
        Repetition.SIGNED,
    ]
    assert (cuts.ranges[1:, 0] == cuts.ranges[:-1, 1]).all()
    assert repeat_starts(text.removeprefix("From: Ada\nTo: Bob\n")) == []  # no mail


def test_an_answer_stays_with_the_question_above_it() -> None:
    text = "From: Ada\n\nSee below.\n\n> When?\n\nOn Monday.\n\n> Where?\n\nHere.\n"
    assert [text[start:].split()[1] for start in repeat_starts(text)] == ["When?", "Where?"]


def test_a_prompt_has_dates_and_senders(retriever: Retriever) -> None:
    hits = retriever.search(QUESTION, k=1)
    assert (hits[0].date, hits[0].author) == (MAILS[2]["date"], "Ada <ada@example.org>")
    head = hits_to_prompt(hits).splitlines()[0]
    assert head.startswith("[1] Ferry (m9, 2026-05-09T08:00:00+00:00, Ada <ada@example.org>, ")


SIGNED = "Kind regards\nIda Holm\nHarbour office\nTelephone 555 0184"
FORWARDED = (
    "Begin forwarded message:\n\nFrom: Ole\nTo: Ida\nDate: 3 May\n\nThe sluice opens at ten."
)


def test_a_signature_counts_once_however_documents_came(tmp_path: Path) -> None:
    words = ("gravel", "timber", "herring", "cement", "ballast")
    mails = [
        mail(
            n,
            f"The {word} is here.\n\n{SIGNED}",
            thread=f"{n}@x",
            sender="Ida Holm <i@example.org>",
        )
        for n, word in enumerate(words, start=1)
    ]
    counted = []
    for name, documents in (("forward", mails), ("backward", mails[::-1])):
        build_index(documents, tmp_path / name)
        retriever = Retriever.load(tmp_path / name)
        hits = retriever.search("telephone of Ida Holm", k=5, unit="passage", fold=False)
        best, second = hits[:2]
        assert best.passage is not None
        assert best.passage.strip() == SIGNED.partition("\n")[2]
        assert best.score > 2 * second.score
        counted.append(best.id)
        assert retriever.search("herring", k=1)[0].id == "m3"
    assert len({*counted}) == 1


def test_a_footer_that_all_mails_have_answers_no_question(tmp_path: Path) -> None:
    footer = (
        "\n\n-- \nQuarry Lime Ltd\nThis mail is confidential. If it reached you by mistake, please"
        " tell the sender and delete it."
    )
    mails = [mail(n, f"Load {n} left the quarry.{footer}", thread=f"{n}@x") for n in range(1, 21)]
    rule = "Mail that reached you by mistake goes to Edda in room 12, who tells the sender."
    build_index([*mails, mail(21, f"{rule}{footer}", thread="21@x")], tmp_path / "i")
    hit = Retriever.load(tmp_path / "i").search("Whom do I tell of a mail sent by mistake?", k=1)[0]
    assert hit.id == "m21"
    assert "room 12" in hit.text[slice(*hit.best_sentence)]


def test_what_is_forwarded_is_found_before_what_says_nothing_of_it(tmp_path: Path) -> None:
    others = [mail(n, f"The gate has code 44{n}.", thread=f"{n}@x") for n in range(2, 9)]
    build_index([*others, mail(1, f"For you.\n\n{FORWARDED}", thread="1@x")], tmp_path / "i")
    hit = Retriever.load(tmp_path / "i").search("When does the sluice open?", k=1, unit="passage")[
        0
    ]
    assert hit.id == "m1"
    assert "at ten" in hit.text[slice(*hit.best_sentence)]


def unlinked(number: int, subject: str, text: str) -> Any:
    """A mail that names no other one, as it is read: it begins a thread of its own."""
    about = {"title": subject, "subject": subject, "message_id": f"<{number}@x>"}
    return mail(number, text, thread=f"<{number}@x>") | about


@pytest.mark.parametrize("unit", ["document", "passage"])
@pytest.mark.parametrize(
    ("subject", "leads"),
    [
        ("Re: Ferry", True),
        ("AW: WG: Ferry", True),
        ("[Harbour] RE[2]: ferry", True),
        ("TR : Ferry", True),
        ("Ferry", False),
        ("Re: Ferries", False),
    ],
)
def test_a_reply_that_names_no_mail_belongs_to_the_one_it_quotes(
    tmp_path: Path, subject: str, leads: bool, unit: Any
) -> None:
    quotation = quoted("Ada", FIRST.replace(" leaves", "\nleaves"))
    mails = [
        unlinked(4, "Ferry", FIRST),
        unlinked(9, subject, f"{SECOND}\n\n{quotation}"),
        unlinked(5, "Re: Ferry", "The ferry to Skagen leaves at 11:10 on Sundays.\n\n> When?"),
        *MAILS[4:],
    ]
    build_index(mails, tmp_path / "i")
    hits = Retriever.load(tmp_path / "i").search(QUESTION, k=6, unit=unit)
    newest = next(hit for hit in hits if hit.id == "m9")
    assert newest.earlier == (("m4",) if leads else ())
    # what it quotes is of no mail here
    assert any(hit.id == "m5" and not hit.earlier for hit in hits)


def test_replies_of_one_another_that_name_no_mail_are_one_conversation(tmp_path: Path) -> None:
    third = "From Monday the ferry to Skagen leaves at 17:30 from pier 4."
    mails = [
        unlinked(12, "Re: Re: Ferry", f"{third}\n\n{quoted('Ada', SECOND)}"),
        unlinked(4, "Ferry", FIRST),
        unlinked(9, "Re: Ferry", f"{SECOND}\n\n{quoted('Ada', FIRST)}"),
    ]
    build_index([*mails, *MAILS[4:]], tmp_path / "i")
    first = Retriever.load(tmp_path / "i").search(QUESTION, k=3)[0]
    assert (first.id, first.earlier) == ("m12", ("m9", "m4"))


def test_a_quotation_of_a_mail_that_is_not_in_the_index_counts_as_forwarded(tmp_path: Path) -> None:
    others = [mail(n, f"The gate has code 44{n}.", thread=f"{n}@x") for n in range(2, 9)]
    crane = "The harbour crane lifts 72 tonnes."
    answer = mail(11, f"Thanks, noted.\n\n{quoted('Ole', crane)}", thread="lost@x")
    build_index([*others, answer], tmp_path / "i")
    question: Any = {"query": "How much does the crane lift?", "unit": "passage", "fold": False}
    retriever = Retriever.load(tmp_path / "i")
    alone = retriever.search(**question, k=1)[0]
    assert alone.id == "m11"
    assert alone.passage is not None
    assert crane in alone.passage
    one_change.upsert([mail(10, "The harbour crane is broken.", thread="lost@x")], tmp_path / "i")
    hits = Retriever.load(tmp_path / "i").search(**question, k=9)
    quotation = next(hit for hit in hits if hit.passage and crane in hit.passage)
    assert quotation.score < alone.score / 2
    one_change.delete(tmp_path / "i", ["m10"])
    hit = Retriever.load(tmp_path / "i").search(**question, k=1)[0]
    assert hit.score == pytest.approx(alone.score, abs=1e-4)
