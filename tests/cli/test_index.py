"""The commands of `aveyb-index`, as a shell sees them: output, exit codes, messages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from aveyb_retrieval import build_index
from aveyb_retrieval.cli.index import main
from tests.indexes.fake import FakeEmbedder, load_instead
from tests.jsonl import write_jsonl

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    {"_id": "a", "title": "Apples", "text": "apples grow on trees", "year": 2020},
    {"_id": "b", "title": "", "text": "bananas grow in bunches " * 6, "year": 2021},
    {"_id": "c", "text": "", "year": 2022},
]
Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with the fake model in place of the embedded one."""

    def load(model: Any = None, **options: Any) -> FakeEmbedder:
        assert options["precision"] == ("bfloat16" if asked else "auto")
        return FakeEmbedder(seed=str(model or "a"), max_tokens=options.get("max_tokens"))

    asked = False

    def invoke(*arguments: object) -> Result:
        nonlocal asked
        asked = "--precision" in arguments
        return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)

    load_instead(monkeypatch, load)
    return invoke


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", ROWS)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "ix"
    build_index(ROWS, path, model=FakeEmbedder(seed="a"))
    return path


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    """An index of the corpus, a test's own."""
    return shutil.copytree(built, tmp_path / "ix")


def test_build_search_info(run: Run, corpus: Path, tmp_path: Path) -> None:
    built = run("build", corpus, "-o", tmp_path / "ix")
    assert built.exit_code == 0
    assert "3 documents, 4 passages" in built.output
    found = run("search", tmp_path / "ix", "apples trees", "-k", 2)
    assert found.exit_code == 0
    assert "Apples" in found.output.splitlines()[0]
    assert "0-20: apples grow on trees" in found.output
    lines = run(
        "search",
        tmp_path / "ix",
        "bananas",
        "-k",
        1,
        "--json",
        "--context",
        1,
        "--fields",
        "id,text,span,passage,metadata",
    ).output.splitlines()
    (hit,) = map(json.loads, lines)
    assert hit["id"] == "b"
    assert hit["metadata"] == {"year": 2021}
    assert hit["text"][slice(*hit["span"])] == hit["passage"]
    told = json.loads(run("info", tmp_path / "ix", "--json").output)
    assert (told["documents"], told["granularity"], told["model"]["name"]) == (3, "both", "fake-a")
    assert "granularity  both" in run("info", tmp_path / "ix").output


def test_search_options(run: Run, index: Path) -> None:
    assert (
        run(
            "search", index, "grow", "--mode", "hybrid", "--rerank", "maxsim", "--passages", 2
        ).exit_code
        == 0
    )
    filtered = run("search", index, "grow", "--filter", '{"year": {"$gt": 2020}}', "--json").output
    assert [json.loads(line)["id"] for line in filtered.splitlines()] == ["b", "c"]
    assert run("search", index, "zzz", "--mode", "lexical").output == "nothing found\n"


def test_exact_words_are_asked_for_and_what_may_be_meant_is_said(
    run: Run, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("fruit => bananas\ngrow\n")
    assert (
        run(
            "build", corpus, "-o", tmp_path / "ix", "--synonyms", tmp_path / "words.txt", "--quiet"
        ).exit_code
        == 0
    )
    assert "synonyms     fruit => bananas" in run("info", tmp_path / "ix").output

    def found(*asked: object) -> list[str]:
        lines = run(
            "search", tmp_path / "ix", *asked, "--mode", "lexical", "--json"
        ).output.splitlines()
        return [json.loads(line)["id"] for line in lines]

    assert found("fruit") == ["b"]
    assert found("apple* -bananas", "--operators") == ["a"]
    told = run("search", tmp_path / "ix", "+aples", "--operators").output
    assert (
        told
        == "no document has 'aples'; did you mean 'apples'?\nnothing found; nothing has +aples\n"
    )
    (tmp_path / "wrong.txt").write_text("two words")
    wrong = run("build", corpus, "-o", tmp_path / "w", "--synonyms", tmp_path / "wrong.txt")
    assert (wrong.exit_code, "line 1: 'two words'" in wrong.output) == (2, True)


def test_a_boost_moves_hits(run: Run, index: Path) -> None:
    plain, moved = (
        {
            hit["id"]: hit["score"]
            for hit in map(json.loads, run("search", index, "grow", *given).output.splitlines())
        }
        for given in (["--json"], ["--json", "--boost", '{"year": 0.5}'])
    )
    best = max(plain.values())
    years = {row["_id"]: row["year"] for row in ROWS}
    assert moved == pytest.approx(
        {name: plain[name] + best * 0.5 * years[name] / 2022 for name in plain}, rel=1e-3
    )


def test_the_precision_that_is_asked_for_is_used(run: Run, corpus: Path, tmp_path: Path) -> None:
    chosen = ("--precision", "bfloat16")
    assert run("build", corpus, "-o", tmp_path / "ix", *chosen).exit_code == 0
    assert run("search", tmp_path / "ix", "grow", *chosen).exit_code == 0
    assert run("upsert", tmp_path / "ix", corpus, *chosen).exit_code == 0
    assert run("search", tmp_path / "ix", "grow", "--precision", "int4").exit_code == 2


def test_changes(run: Run, index: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.csv"
    more.write_text("_id,text\nd,dates grow on palms\n")
    assert "4 documents" in run("add", index, more, "--quiet").output
    assert run("add", index, more, "--quiet").exit_code == 2
    more.write_text("_id,text\nd,figs\n")
    assert "4 documents" in run("upsert", index, more, "--quiet").output
    assert (
        run("search", index, "figs", "-k", 1, "--mode", "lexical", "--json").output.count(
            '"id": "d"'
        )
        == 1
    )
    ids = tmp_path / "ids.txt"
    ids.write_text("a\n\nd\n")
    assert "2 documents" in run("delete", index, "--from", ids).output
    assert "1 document," in run("delete", index, "--filter", '{"year": 2022}').output
    assert run("delete", index, "nobody").exit_code == 2
    ids.write_bytes("ä\n".encode("latin-1"))
    refused = run("delete", index, "--from", ids)
    assert (refused.exit_code, "ids.txt: not UTF-8 text" in refused.stderr) == (2, True)
    assert "1 document," in run("compact", index, "--quiet").output
    assert run("verify", index).output == "sound\n"


def test_verify_and_repair(run: Run, corpus: Path, tmp_path: Path) -> None:
    index = tmp_path / "ix"
    assert run("build", corpus, "-o", index, "--index", "SQ8", "--quiet").exit_code == 0
    (damaged,) = index.glob("faiss/document-*")
    damaged.write_bytes(b"x")
    broken = run("verify", index)
    assert broken.exit_code == 1
    assert damaged.name in broken.output
    assert broken.output.endswith("damaged\n")
    repaired = run("verify", index, "--repair", "--json")
    assert repaired.exit_code == 0
    assert json.loads(repaired.output)["repaired"] is True
    assert run("search", index, "apples").exit_code == 0


def test_passages_are_shown_whole_with_the_words_marked(run: Run, index: Path) -> None:
    arguments = (
        "search",
        index,
        "growing bananas",
        "--unit",
        "passage",
        "--per-document",
        1,
        "-k",
        2,
    )
    plain = run(*arguments)
    assert plain.exit_code == 0
    assert ROWS[1]["text"][:47] in plain.output  # eight words, as the fake model cuts
    assert "confidence 0." in plain.output
    colored = CliRunner().invoke(main, [str(a) for a in arguments], color=True)
    assert "\x1b[1mbananas\x1b[0m" in colored.output
    assert "\x1b[1mgrow\x1b[0m" in colored.output
    line, *_ = run(*arguments, "--json").output.splitlines()
    hit = json.loads(line)
    assert (hit["id"], "text" in hit, hit["passages"][0]["span"]) == ("b", False, hit["span"])
    line, *_ = run(*arguments, "--json", "--fields", "id, text").output.splitlines()
    assert json.loads(line) == {"id": "b", "text": ROWS[1]["text"]}
    assert run("search", index, "engines", "--min-score", 1.0).output == "nothing found\n"
    assert "[c]" in run("search", index, "bananas", "--id", "c", "--id", "nobody").output
    whole = run("search", index, "bananas", "-k", 3).output
    assert (
        run("search", index, "bananas", "-k", 2, "--offset", 1).output
        == whole[whole.index("  2. ") :]
    )


def test_of_a_long_passage_the_best_sentence_is_shown_in_a_short_line(
    run: Run, tmp_path: Path
) -> None:
    rest = " ".join(f"Nothing of use stands in line {number}." for number in range(40))
    text = f"{rest} The bananas are kept in the cold store. {rest}"
    (tmp_path / "long.jsonl").write_text(json.dumps({"_id": "long", "text": text}) + "\n")
    assert (
        run(
            "build", tmp_path / "long.jsonl", "-o", tmp_path / "ix", "--granularity", "document"
        ).exit_code
        == 0
    )
    lines = run("search", tmp_path / "ix", "bananas", "--mode", "lexical").output.splitlines()
    assert len(lines[1]) < 330 and lines[1].strip().startswith("…") and lines[1].endswith("…")
    assert "bananas are kept in the cold store" in lines[1]


def test_what_was_cut_or_left_out_is_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "text": "one two three four"}\n{"_id": \n')
    result = run(
        "build", path, "-o", tmp_path / "ix", "--on-error", "skip", "--max-tokens", 3, "--quiet"
    )
    assert result.exit_code == 1  # something was left out
    assert "1 document lost 1 token" in result.output
    assert "left out: 1 line or file, listed with reasons in" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search", "INDEX", "q", "-k", "0"], "-k 0"),
        (["search", "INDEX", "q", "-k", "-3"], "-k -3"),
        (["search", "INDEX", " "], "the query is empty"),
        (
            ["search", "INDEX", "q", "--diversity", "0.5"],
            "--diversity 0.5: only with unit='passage'",
        ),
        (
            ["search", "INDEX", "q", "--boost", '{"yeer": 1}'],
            "boost: no document has the field 'yeer'",
        ),
        (["search", "INDEX", "q", "--boost", "year=1"], "--boost 'year=1': not JSON"),
        (
            ["search", "INDEX", "q", "--json", "--fields", "id,name"],
            "no field 'name'; known are id, score, text",
        ),
        (["search", "INDEX", "q", "--fields", "id"], "--fields: only with --json"),
        pytest.param(
            ["search", "INDEX", "q", "--rerank", "NOWHERE"],
            "a sentence-transformers cross-encoder",
            marks=pytest.mark.needs("sentence_transformers"),
        ),
        (
            ["build", "CORPUS", "-o", "NEW", "--language", "latin"],
            "--language 'latin': must be one of auto, english",
        ),
        (["search", "INDEX", "q", "--filter", "{"], "not JSON"),
        (["search", "INDEX", "q", "--filter", "[]"], "not a mapping"),
        (["search", "INDEX", "q", "--model", "other"], "made by the model fake-a"),
        (["search", "NOWHERE", "q"], "no index here"),
        (["info", "NOWHERE"], "no index here"),
        (["verify", "NOWHERE"], "no index here"),
        (["build", "CORPUS", "-o", "INDEX"], "--overwrite"),
        (["build", "missing.jsonl", "-o", "NEW"], "no such file"),
        (["build", "BAD", "-o", "NEW"], "line 1: not JSON"),
        (["build", "EMPTY", "-o", "NEW"], "no documents"),
        (["build", "CORPUS", "-o", "NEW", "--index", "Nonsense"], "'Nonsense'"),
        (["build", "-o", "NEW"], "CORPUS"),
        (["upgrade", "INDEX"], "No such command 'upgrade'"),
        (["build", "CORPUS", "-o", "NEW", "--index-field", "year"], "No such option"),
        (["add", "NOWHERE", "CORPUS"], "no index here"),
        (
            ["search", "INDEX", "q", "--filter", '{"year": {"$search": "2"}}'],
            "'$search' on 'year' is not known",
        ),
    ],
)
def test_errors_have_exit_code_2_and_one_message(
    run: Run, index: Path, corpus: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "bad.jsonl").write_text("{oops\n")
    (tmp_path / "empty.jsonl").write_text("")
    names = {
        "INDEX": index, "NOWHERE": tmp_path / "nowhere", "NEW": tmp_path / "new", "CORPUS": corpus,
        "BAD": tmp_path / "bad.jsonl", "EMPTY": tmp_path / "empty.jsonl",
    }  # fmt: skip
    before = sorted(index.rglob("*"))
    result = run(*(names.get(a, a) for a in arguments))
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "new").exists()
    assert sorted(index.rglob("*")) == before


def test_an_index_can_begin_empty(run: Run, corpus: Path, tmp_path: Path) -> None:
    root, nothing = tmp_path / "ix", tmp_path / "nothing.jsonl"
    nothing.write_text("")
    refused = run("build", nothing, "-o", root, "--quiet")
    assert (refused.exit_code, "holds no documents" in refused.stderr) == (2, True)
    assert "0 documents" in run("build", nothing, "-o", root, "--allow-empty", "--quiet").stdout
    again = run("init", root, "--quiet")
    assert (again.exit_code, "already there" in again.stderr) == (2, True)
    made = run("init", tmp_path / "other", "--granularity", "passage", "--quiet")
    assert (made.exit_code, "0 documents" in made.stdout) == (0, True)
    run("add", tmp_path / "other", corpus, "--quiet")
    assert run("count", tmp_path / "other").stdout == "3\n"
    info = json.loads(run("info", tmp_path / "other", "--json").stdout)
    assert (info["granularity"], info["documents"]) == ("passage", 3)


def test_several_indexes_are_searched_in_one_ranking(run: Run, index: Path, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text(
        '{"_id": "pear", "title": "Pears", "text": "pears grow on trees"}\n'
    )
    run("build", tmp_path / "more.jsonl", "-o", tmp_path / "more")
    found = run("search", index, "what grows on trees", "--with", tmp_path / "more", "-k", 2).output
    assert {f"[{index}: a]", f"[{tmp_path / 'more'}: pear]"} <= set(re.findall(r"\[.*?\]", found))


def test_get_list_and_count_read_documents(run: Run, index: Path, tmp_path: Path) -> None:
    found = [json.loads(line) for line in run("get", index, "b", "a").stdout.splitlines()]
    assert [(each["_id"], each["metadata"]) for each in found] == [
        ("b", {"year": 2021}),
        ("a", {"year": 2020}),
    ]
    missing = run("get", index, "a", "nobody")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "no document has the id 'nobody'" in missing.stderr
    assert len(run("get", index, "a", "nobody", "--missing-ok").stdout.splitlines()) == 1
    assert run("list", index, "--ids").stdout == "a\nb\nc\n"
    assert run("list", index, "--ids", "--offset", 1, "--limit", 1).stdout == "b\n"
    assert run("list", index, "--ids", "--filter", '{"year": {"$gt": 2020}}').stdout == "b\nc\n"
    assert run("count", index, "--filter", '{"year": {"$gt": 2020}}').stdout == "2\n"
    assert run("count", index, "--by", "year").stdout.split() == [
        "1",
        "2020",
        "1",
        "2021",
        "1",
        "2022",
    ]
    assert run("count", index, "--by", "title", "--filter", '{"year": 2020}').stdout.split() == [
        "1",
        "Apples",
    ]
    wrong = run("count", index, "--filter", "year>2020")
    assert (wrong.exit_code, "not JSON" in wrong.stderr) == (2, True)
    (tmp_path / "copy.jsonl").write_text(run("list", index).stdout)
    run("build", tmp_path / "copy.jsonl", "-o", tmp_path / "copy", "--quiet")
    assert run("list", tmp_path / "copy").stdout == run("list", index).stdout


def test_metadata_are_changed_from_the_shell(run: Run, index: Path) -> None:
    done = run(
        "update-metadata",
        index,
        "--filter",
        '{"year": {"$lt": 2022}}',
        "--set",
        '{"old": true}',
        "--quiet",
    )
    assert (done.exit_code, done.stdout) == (0, f"{index}: version v000002, 3 documents\n")
    run("update-metadata", index, "a", "--remove", "year", "--set", '{"tags": ["x"]}', "--quiet")
    assert (
        run("list", index, "--ids", "--filter", '{"old": true, "year": {"$is_empty": true}}').stdout
        == "a\n"
    )
    for arguments, words in (
        (("a", "--set", "year=1"), "not JSON"),
        (("a", "--set", "[1]"), "not an object"),
        (("a", "--set", '{"title": "New"}'), "'title' is a field of the document"),
        (("a",), "nothing to change"),
        (("--set", '{"x": 1}'), "ids or a filter"),
        (("nobody", "--set", '{"x": 1}'), "'nobody'"),
    ):
        refused = run("update-metadata", index, *arguments, "--quiet")
        assert (refused.exit_code, words in refused.stderr) == (2, True)


def test_errors_are_in_the_words_that_were_typed(run: Run, index: Path) -> None:
    refused = run("search", index, "apples", "--min-score", "2")
    assert "search: --min-score 2.0: a confidence is at most 1" in refused.stderr
    refused = run("build", index, "-o", index.parent / "new", "--passage-tokens", "8")
    assert "build: --passage-tokens is 8; it must be from 16 to" in refused.stderr
    refused = run("search", index, "apples", "--json", "--fields", "id,plac")
    assert "a hit has no field 'plac'; did you mean 'place'?" in refused.stderr
    assert run("search", index, "apples", "--json", "--fields", "id,place").exit_code == 0
    assert run("count", index, "--filter", '{"year": 2020}').output == "1\n"
    assert "--clear" in run("update-metadata", index, "a", "--clea").stderr
