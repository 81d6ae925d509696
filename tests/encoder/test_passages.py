"""Passages: whole sentences, exact characters, every token once, and a grown text keeps what did
not change.
"""

from __future__ import annotations

import random
import re
import unicodedata

import numpy as np
import pytest

from aveyb_retrieval.encoder.model_folders import DEFAULT_MODEL
from aveyb_retrieval.encoder.text.passages import (
    Cuts,
    PassageSize,
    cut_passages,
    cut_splits,
    names_of,
    outline,
)
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, read_vocabulary
from aveyb_retrieval.errors import ConfigError

BYTES = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])

PIECES = [
    "The pump stops. ",
    "Dr. No met Mr. Yes at 3.15 p.m. on Fig. 2. ",
    "Is it? ",
    "No! ",
    "He said “stop. now” twice. ",
    "書面通知により解除する。",
    "他们同意了。",
    "本合同自签字之日起生效、",
    "ไม่มีช่องว่าง",
    "यह एक वाक्य है। ",
    "한국어 문장입니다. ",
    "e\u0301te\u0301 ",
    "Z\u0351\u0300\u0301\u0302a ",
    "👨\u200d👩\u200d👧",
    "🇩🇪🇫🇷",
    "👍🏽 ",
    "naïve-café ",
    "x_y.z() ",
    "0123456789",
    "\r\n",
    "\n",
    "\n\n",
    "\r\n\r\n",
    "\t",
    "  ",
    "\u3000",
    "\u2028",
    "\f",
    "# Heading\n\n",
    "## Zwei ##\r\n",
    "Title Case Line\n\n",
    "3.2 Scope\n\n",
    "Underlined\n==========\n",
    "第一章 总则\n\n",
    "- item one\n",
    "* item\n",
    "1. first\n",
    "(a) second\n",
    "| a | b |\n",
    "```\ncode = 1\n# no heading\n```\n",
    "and then it went on, and on; ",
    "word " * 12,
    "Wort",
    "antidisestablishmentarianism" * 4,
    "(",
    '"',
    "«",
    "...",
    "…",
]
BLANKS = re.compile(r"\s*")
LONGEST_WORD = 500  # a longer one is longer than any passage of these tests
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI")


def tokenized(text: str, tokenizer: Tokenizer = BYTES) -> np.ndarray:
    return tokenizer.encode(text)[1]


def cut(text: str, tokens: int = 16, overlap: int = 0) -> Cuts:
    return cut_passages(text, tokenized(text), PassageSize(tokens, overlap))


def passages(text: str, tokens: int = 16, overlap: int = 0) -> list[str]:
    return [text[start:stop] for start, stop in cut(text, tokens, overlap).spans.tolist()]


def is_word(character: str) -> bool:
    return (
        character.isalpha()
        or character.isdecimal()
        or unicodedata.category(character).startswith("M")
    )


def is_inside_word(text: str, place: int, tokens_of: np.ndarray, size: int) -> bool:
    """Whether a place lies inside a word that fits into a passage."""
    if not 0 < place < len(text) or not (is_word(text[place - 1]) and is_word(text[place])):
        return False
    if any(unicodedata.name(c, "").startswith(NO_SPACES) for c in text[place - 1 : place + 1]):
        return False
    start, stop = place, place
    while start > max(place - LONGEST_WORD, 0) and is_word(text[start - 1]):
        start -= 1
    while stop < min(place + LONGEST_WORD, len(text)) and is_word(text[stop]):
        stop += 1
    first, end = np.searchsorted(tokens_of, [start, stop])
    return stop - start < LONGEST_WORD and int(end - first) < size * 3 // 4


def check(text: str, offsets: np.ndarray, cuts: Cuts, size: int) -> None:
    ranges, spans = cuts.ranges, cuts.spans
    assert len(ranges) == len(spans) == len(cuts.headings)
    assert (ranges[0, 0], ranges[-1, 1]) == (0, len(offsets))
    assert (ranges[1:, 0] == ranges[:-1, 1]).all(), "every token is in exactly one passage"
    assert (ranges[:, 0] < ranges[:, 1]).all()
    assert (spans[1:, 0] >= spans[:-1, 1]).all()
    left, at = [], 0
    for (start, stop), (first, end) in zip(spans.tolist(), ranges.tolist(), strict=True):
        passage = text[start:stop]
        assert passage == passage.strip()
        left.append(text[at:start])
        at = stop
        for place in (start, stop):
            assert not is_inside_word(text, place, offsets[:, 0], size), (text[:start], passage)
            assert place in (0, len(text)) or text[place - 1 : place + 1] != "\r\n" or place == stop
            assert place in (0, len(text)) or not unicodedata.combining(text[place]), repr(passage)
        for a, b in offsets[first:end].tolist():
            # a capital's mark is empty and belongs to the word after the blanks
            if a == b or text[a:b].strip():
                assert start <= BLANKS.match(text, a).end() < stop, (
                    "its tokens are those of its characters"
                )
    assert not "".join([*left, text[at:]]).strip(), "nothing but white space is left out"


def fuzzed(rng: random.Random) -> str:
    some = rng.sample(PIECES, rng.randint(1, 12))
    return "".join(rng.choices(some, k=rng.randint(1, 60)))


def fuzz(texts: range) -> None:
    vocabularies = [BYTES, read_vocabulary(DEFAULT_MODEL)]
    for seed in texts:
        rng = random.Random(seed)
        text = fuzzed(rng)
        size = rng.choice([16, 24, 64])
        offsets = tokenized(text, vocabularies[seed % len(vocabularies)])
        cuts = cut_passages(text, offsets, PassageSize(size))
        if not len(offsets):  # to WordPiece, white space is nothing
            assert not text.strip() and not len(cuts)
            continue
        check(text, offsets, cuts, size)
        assert (cut_passages(text, offsets, PassageSize(size)).spans == cuts.spans).all()
        if size >= 24:
            overlapping = cut_passages(text, offsets, PassageSize(size, 8))
            assert (overlapping.spans[:, 1] == cuts.spans[:, 1]).all(), (
                "an overlap moves beginnings only"
            )
            assert (overlapping.spans[:, 0] <= cuts.spans[:, 0]).all()
            assert (overlapping.ranges[:, 1] == cuts.ranges[:, 1]).all()


def test_tokens_without_their_blanks_are_not_cut_inside_words() -> None:
    text = " ".join(["word", "wordword"] * 40)
    # as WordPiece has them
    offsets = np.array([found.span() for found in re.finditer("word", text)])
    cuts = cut_passages(text, offsets, PassageSize(16))
    assert len(cuts) > 4
    assert {text[start - 1 : start] for start, _ in cuts.spans.tolist()} == {"", " "}


def test_a_last_accent_is_not_left_out() -> None:
    text = "an e\u0301te\u0301"
    offsets = np.array([[0, 2], [3, 4], [5, 7]])
    assert cut_passages(text, offsets, PassageSize(16)).spans.tolist() == [[0, len(text)]]


def test_fuzzed_texts() -> None:
    fuzz(range(200))


@pytest.mark.slow
def test_ten_thousand_fuzzed_texts() -> None:
    fuzz(range(10_000))


@pytest.mark.parametrize("piece", ["a", "字", "é", "a.b,", "👨‍👩‍👧", "no stop at all "])
@pytest.mark.parametrize("size", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_one_line_without_sentences(piece: str, size: int) -> None:
    text = piece * (size // len(piece.encode()))
    offsets = tokenized(text)
    cuts = cut_passages(text, offsets, PassageSize(128))
    check(text, offsets, cuts, 128)
    lengths = np.diff(cuts.ranges, axis=1)[:, 0]
    assert lengths.max() <= 128 * 3 / 2, "blanks are not counted"
    assert lengths.min() >= 32


@pytest.mark.parametrize("seed", range(30))
def test_a_grown_text_keeps_its_passages_up_to_the_one_before_last(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(
        rng.choices([piece for piece in PIECES if piece not in ('"', "“", "(", "«")], k=80)
    )
    whole = cut(text, 32)
    for stop in rng.sample(range(len(text)), 10):
        part = cut(text[:stop], 32)
        kept = max(len(part) - 2, 0)
        assert part.spans[:kept].tolist() == whole.spans[:kept].tolist()


def test_passages_are_whole_sentences() -> None:
    text = "Mr. Fox runs. He is e.g. quick. Is he? 3.5 m. Yes! It ends."
    assert passages(text, 32) == ["Mr. Fox runs. He is e.g. quick. Is he?", "3.5 m. Yes! It ends."]
    assert passages("合同生效。甲方付款。乙方交货。完。", 32) == [
        "合同生效。甲方付款。",
        "乙方交货。完。",
    ]


def test_paragraphs_are_preferred_to_sentences_and_headings_to_paragraphs() -> None:
    assert (
        passages("One two three four. Five.\n\nSix. Seven eight nine ten.", 32)[0]
        == "One two three four. Five."
    )
    text = "One two three.\n\n# New\n\nFour five six. Seven eight.\n\nNine ten eleven twelve."
    assert passages(text, 40) == [
        "One two three.",
        "# New\n\nFour five six. Seven eight.",
        "Nine ten eleven twelve.",
    ]


def test_a_heading_goes_with_what_follows_and_comes_with_each_passage() -> None:
    text = (
        "Before it all begins.\n\n# First\n\n## Second\n\nShort text here. And more of it. And the"
        " end.\n\nThird One\n=========\n\nText of it.\n\n```\n# code\n```\n"
    )
    cuts = cut(text, 48)
    shown = [
        (text[a:b], heading)
        for (a, b), heading in zip(cuts.spans.tolist(), cuts.headings, strict=True)
    ]
    assert shown == [
        ("Before it all begins.", ""),
        ("# First\n\n## Second\n\nShort text here. And more of it.", "First"),
        ("And the end.\n\nThird One\n=========\n\nText of it.\n\n```\n# code\n```", "Second"),
    ]


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        ("## Scope ##\nText.", "Scope"),
        ("Scope\n-----\nText.", "Scope"),
        ("=====\nScope\n=====\n\nText.", "Scope"),
        ("1.2 Scope of this\n\nText.", "1.2 Scope of this"),
        ("ARTICLE IV\n\nText.", "ARTICLE IV"),
        ("Notes on Scope\n\nText.", "Notes on Scope"),
        ("第二章 范围\n\n正文。", "第二章 范围"),
        ("#no heading\nText.", ""),
        ("A sentence.\n\nText.", ""),
        ("a line in lower case\n\nText.", ""),
        ("| a | b |\n|---|---|\nText.", ""),
        ("Scope", ""),
        ("5. Term and Scope.\n\nText.", "5. Term and Scope"),
        ("5.4 Change of Control. A party may end it.", "5.4 Change of Control"),
        ("Section 5. Change of Control: a party may end it.", "Section 5. Change of Control"),
        ("2. NO WARRANTY. It is sold as it is.", "2. NO WARRANTY"),
        ("5.4 The supplier may end it. It is free.", ""),
        ("~~~\n5.4 Change of Control. Text.\n~~~\n", ""),
        ("Source: Acme, 8-K, 1/9/2020\n\nText.", ""),
        ("New York, New York 10005\n\nText.", ""),
    ],
)
def test_headings(text: str, heading: str) -> None:
    assert cut(text).headings[0] == heading


def test_a_caption_goes_with_the_clause_behind_it_and_begins_one_in_running_lines() -> None:
    text = "1.1 Notice. It is long.\n1.2 Law. It is strict. As in Section\n1.3 Seat. It is here."
    found = outline(text)
    assert [each.words for each in found.headings] == ["1.1 Notice", "1.2 Law"]
    above = "ARTICLE 1 > 1.0 Start"
    assert names_of(found.headings, above) == ["ARTICLE 1 > 1.1 Notice", "ARTICLE 1 > 1.2 Law"]
    assert (
        names_of(found.headings, "5. Term") == names_of(found.headings) == ["1.1 Notice", "1.2 Law"]
    )
    assert names_of(found.headings, "1. Term") == ["1. Term > 1.1 Notice", "1. Term > 1.2 Law"]
    assert [text[place:][:8] for place in found.places.tolist()] == [
        "1.1 Noti",
        "1.2 Law.",
        "As in Se",
        "It is he",
    ]


def test_a_line_within_a_sentence_is_no_heading() -> None:
    long = (
        "This goes on for more than the ninety characters that a line of a heading may have, as"
        " said by"
    )
    for before, behind in (
        (long, "Cartmill, Matt."),
        ("It ends.", ", who said so."),
        ("It ends.", long.lower()),
    ):
        assert not outline(f"{before}\n\nCartmill\n\n{behind}").headings
    assert outline(f"{long} him.\n\nCartmill\n\nHe said so.").headings
    assert outline("It ends.\n\nInstall\n\nmake install").headings
    for behind in ("-- \nAna Lima", "> Shall we stop?", "On Monday Ben wrote:\n> Shall we stop?"):
        assert not outline(f"We come.\n\nAna\n\n{behind}").headings, "the name below a mail"


def test_no_scraps_are_left() -> None:
    for length in range(1, 400):
        text = "One two. " * (length // 9) + "x" * (length % 9)
        lengths = np.diff(cut(text, 64).ranges, axis=1)[:, 0]
        assert len(lengths) == 1 or lengths.min() >= 16


def test_a_sentence_that_is_too_long_is_cut_at_lines_clauses_and_words() -> None:
    assert passages("one two three x\nfour five six seven eight nine", 24)[0] == "one two three x"
    assert passages("one two three, four five six seven eight nine", 24)[0] == "one two three,"
    assert (
        passages("one two three four five six seven eight nine", 24)[0]
        == "one two three four five six"
    )


def test_overlap_repeats_whole_sentences() -> None:
    text = "One two. Three four. Five six. Seven eight. Nine ten."
    assert passages(text, 24) == ["One two. Three four.", "Five six. Seven eight.", "Nine ten."]
    assert passages(text, 24, 12) == [
        "One two. Three four.", "Three four. Five six. Seven eight.", "Seven eight. Nine ten.",
    ]  # fmt: skip


def test_tokens_before_the_text_belong_to_the_first_passage() -> None:
    prefix, text = "A title\n", "One two. Three four. Five six."
    offsets = tokenized(prefix + text) - len(prefix)
    cuts = cut_passages(text, offsets, PassageSize(16))
    assert cuts.ranges[0, 0] == 0
    assert cuts.spans.tolist() == cut(text).spans.tolist()
    only = cut_passages("", tokenized(prefix) - len(prefix), PassageSize(16))
    assert (only.ranges.tolist(), only.spans.tolist()) == ([[0, 8]], [[0, 0]])
    assert len(cut("")) == 0


def test_what_was_not_read_is_in_no_passage() -> None:
    text = "One two. Three four. Five six. Seven."
    cuts = cut_passages(text, tokenized(text)[:20], PassageSize(16))
    assert cuts.spans[-1, 1] == 20


def test_splits_as_passages() -> None:
    cuts = cut_splits("abcdefg", tokenized("abcdefg"), 3)
    assert cuts.ranges.tolist() == cuts.spans.tolist() == [[0, 3], [3, 6], [6, 7]]


@pytest.mark.parametrize(("tokens", "overlap"), [(15, 0), (9000, 0), (64, 33), (64, -1)])
def test_sizes_out_of_range_are_refused(tokens: int, overlap: int) -> None:
    with pytest.raises(ConfigError, match="it must be from"):
        PassageSize(tokens, overlap)


def test_long_tokens_of_unknown_scripts_count_as_several() -> None:
    words = ["ผู้เช่าต้องชำระค่าเช่าทุกเดือน", "ห้ามเลี้ยงสุนัขในอาคารนี้เลย"] * 200
    text, offsets, start = " ".join(words), [], 0
    for word in words:
        offsets.append((start, start + len(word)))
        start += len(word) + 1
    cuts = cut_passages(text, np.array(offsets), PassageSize(256))
    lengths = np.diff(cuts.spans, axis=1)[:, 0]
    assert 900 < np.median(lengths) <= lengths.max() < 1800
    run = np.array([(0, 9000), (9001, 9004), (9005, 18000)])
    assert len(cut_passages("ก" * 9000 + " กขค " + "ก" * 8995, run, PassageSize(16)).spans) >= 1


CLAUSES = """7. GENERAL

7.1 Governing Law. French law governs this.

7.2 Force majeure. Neither party is liable for floods.

7.3 The parties meet each quarter.
7.3.1 They always meet in Bonn. 7.4 million people live there.

7.5 Assignment. None.

3.5 million people live elsewhere.

8. Venue. It is Kiel.

9. The parties agree on it:

1. first
2. second
"""


def test_a_numbered_clause_ends_the_caption_before_it() -> None:
    found = outline(CLAUSES).headings
    assert names_of(found) == [
        "7. GENERAL",
        "7. GENERAL > 7.1 Governing Law",
        "7. GENERAL > 7.2 Force majeure",
        "7. GENERAL > 7.3",
        "7. GENERAL > 7.3.1",
        "7. GENERAL > 7.5 Assignment",
        "8. Venue",
        "9",
    ]
    assert all(CLAUSES[each.start : each.stop].startswith(each.words) for each in found)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            (
                "ARTICLE II\n\nRENT\n\nSection 2.01 Base Rent. Paid.\n\nARTICLE III\nTERM AND"
                " TERMINATION\n\nFive.\n"
            ),
            [
                "ARTICLE II",
                "RENT",
                "RENT > Section 2.01 Base Rent",
                "ARTICLE III TERM AND TERMINATION",
            ],
        ),
        (
            "§ 2 Miete\n\nSie ist hoch.\n\n§ 3\nKündigung\n\nDie Frist.\n",
            ["§ 2 Miete", "§ 3 Kündigung"],
        ),
        ("Chapter 4.\nThe house\n\nIt stood there.\n", ["Chapter 4. The house"]),
        ("Section 4\nis void.\n\nSo it is.\n", []),
        (
            (
                "Part 5\nis meant by this and by nothing else that the parties may have said"
                " before.\n\nSo it is.\n"
            ),
            [],
        ),
    ],
)
def test_a_label_above_its_title_is_one_heading(text: str, names: list[str]) -> None:
    assert names_of(outline(text).headings) == names


def test_a_bare_number_stands_behind_the_caption_it_is_a_part_of() -> None:
    text = (
        "ARTICLE 4 RENT\n\n4.1 Licenses. Some.\n\n4.1.1 One of them is here.\n\n4.1.2 And another"
        " is there.\n"
    )
    found, right = (
        outline(text).headings,
        [
            "ARTICLE 4 RENT > 4.1 Licenses",
            "ARTICLE 4 RENT > 4.1 Licenses > 4.1.1",
            "ARTICLE 4 RENT > 4.1 Licenses > 4.1.2",
        ],
    )
    assert names_of(found) == ["ARTICLE 4 RENT", *right]
    for number in (1, 2, 3):
        assert names_of(found[number + 1 :], right[number - 1]) == right[number:]


def test_parts_of_the_same_kind_stand_beside_each_other() -> None:
    laws = (
        "§ 3 Haftung\n\nSie ist begrenzt.\n\n§ 4 Gerichtsstand. Er ist Kiel.\n\n§ 5 Es gilt"
        " deutsches Recht.\n"
    )
    assert names_of(outline(laws).headings) == ["§ 3 Haftung", "§ 4 Gerichtsstand", "§ 5"]
    within = (
        "Article 3 Liability\n\nText.\n\nSection 1. Cap. It is 5.\n\nSection 2. None of it"
        " applies.\n"
    )
    assert names_of(outline(within).headings)[1:] == [
        "Article 3 Liability > Section 1. Cap",
        "Article 3 Liability > Section 2",
    ]
    steps = (
        "1. Installation\n\nRead this.\n\n1. Unpack it slowly now. Gently.\n\n2. Connect it slowly"
        " now. Firmly.\n"
    )
    assert names_of(outline(steps).headings) == ["1. Installation"]
    recipe = "Flour 2\n\n2.5 kg of flour. Mix it.\n\n3 eggs. Beat them.\n"
    assert [each.words for each in outline(recipe).headings if each.caption] == []


@pytest.mark.parametrize(
    "heading",
    [
        "第3条 违约责任",
        "Artikel 5 Haftung",
        "§ 7 Kündigung",
        "Artículo 12. Plazo de entrega",
        "Статья 5. Ответственность",
        "المادة 4 الدفع",
        "Madde 9 Fesih",
    ],
)
def test_numbered_divisions_of_many_languages_are_headings(heading: str) -> None:
    text = f"Eins zwei drei.\n\n{heading}\n\nVier fünf sechs sieben acht.\n"
    assert [found.words for found in outline(text).headings] == [heading]


def test_what_a_sentence_says_of_an_article_is_no_heading() -> None:
    text = "Eins.\n\nArtikel aus Holz werden von der Steuer nicht erfasst.\n\nZwei drei.\n"
    assert outline(text).headings == []
