"""The file that a document was read from: given out where it is asked for, from the folder that was
read, unchanged.
"""

from __future__ import annotations

import io
import shutil

import pytest

from aveyb_retrieval import build_index
from aveyb_retrieval.server.limits import ServerLimits
from tests.indexes.fake import FakeEmbedder
from tests.indexes.files import make_pdf

TEXT = b"# Lease\n\nThe tenant may end it with three months' notice.\n"


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "handbook"
    (folder / "law").mkdir(parents=True)
    (folder / "law" / "lease.md").write_bytes(TEXT)
    (folder / "pump.txt").write_bytes(b"Close the valve before opening the filter.\n")
    (tmp_path / "secret.txt").write_bytes(b"a secret beside the folder\n")
    build_index(folder, tmp_path / "index", model=FakeEmbedder())
    return folder


@pytest.fixture
def ask(files, tmp_path, open_client):
    client = open_client(
        {"handbook": tmp_path / "index"}, originals=True, limits=ServerLimits(max_answer=5000)
    )
    return lambda name: client.get(f"/originals/{name}")


def test_it_comes_byte_by_byte_and_is_never_shown_as_a_page(ask):
    answer = ask("law/lease.md")
    assert (answer.status_code, answer.content) == (200, TEXT)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_labels_are_no_part_of_a_file(open_client, tmp_path, files):
    (files / "metadata.csv").write_text("path,year\n*.txt,2024\nlaw/*.md,1999\n")
    build_index(files, tmp_path / "labelled", model=FakeEmbedder(), path_fields="{area}/*")
    client = open_client({"labelled": tmp_path / "labelled"}, originals=True)
    metadata = client.get("/documents/law/lease.md").json()["metadata"]
    assert (metadata["area"], metadata["year"]) == ("law", 1999)
    assert client.get("/originals/law/lease.md").content == TEXT
    assert client.get("/originals/pump.txt").status_code == 200


def test_the_document_says_whether_there_is_one(open_client, files, folder, tmp_path):
    paths = {"handbook": tmp_path / "index", "words": folder}
    client = open_client(paths, originals=True)
    assert client.get("/documents/pump.txt?index=handbook").json()["original"] is True
    assert client.get("/documents/doc-3?index=words").json()["original"] is False  # it was no file
    assert client.get("/originals/doc-3?index=words").status_code == 404
    off = open_client(paths)
    assert off.get("/documents/pump.txt?index=handbook").json()["original"] is False
    refused = off.get("/originals/pump.txt?index=handbook")
    assert (refused.status_code, "--originals is not given" in refused.json()["error"]) == (
        404,
        True,
    )


def changed(files):
    (files / "pump.txt").write_bytes(b"Something else, which the index does not know.\n")


def gone(files):
    (files / "pump.txt").unlink()


def link_in_its_place(files):
    shutil.move(files / "pump.txt", files.parent / "moved.txt")
    (files / "pump.txt").symlink_to(files.parent / "moved.txt")


def link_to_the_folder(files):
    shutil.move(files, files.parent / "moved")
    files.symlink_to(files.parent / "moved")


# an index from somebody else may name any file of this machine, but not say what is in it
@pytest.mark.parametrize("harm", [changed, gone, link_in_its_place, link_to_the_folder])
def test_a_file_that_is_not_as_it_was_is_not_given_out(ask, files, harm):
    assert ask("pump.txt").status_code == 200
    harm(files)
    answer = ask("pump.txt")
    assert answer.status_code == 404
    assert str(files.parent) not in answer.text


@pytest.mark.parametrize(
    "name", ["../secret.txt", "%2e%2e/secret.txt", "law/../../secret.txt", "/etc/passwd", "none"]
)
def test_only_what_is_in_the_index_is_asked_for(ask, name):
    answer = ask(name)
    assert answer.status_code == 404
    assert b"secret beside" not in answer.content


def test_a_file_beyond_the_largest_answer_is_not_read_whole(open_client, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "long.txt").write_bytes(b"word " * 2000)
    build_index(tmp_path / "files", tmp_path / "long", model=FakeEmbedder())
    client = open_client(
        {"long": tmp_path / "long"}, originals=True, limits=ServerLimits(max_answer=5000)
    )
    assert client.get("/originals/long.txt").status_code == 404


MANUAL = [
    ["The relief valve opens at nine bar", "and closes at eight bar."],
    ["The pump is started by hand."],
]


@pytest.fixture
def manual(tmp_path):
    pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed: pip install '.[files]'")
    (tmp_path / "pdf").mkdir()
    (tmp_path / "pdf" / "m.pdf").write_bytes(make_pdf(MANUAL))
    (tmp_path / "pdf" / "note.md").write_text("# Note\n\nNo page has this.")
    build_index(tmp_path / "pdf", tmp_path / "manual", model=FakeEmbedder())
    return tmp_path


def test_boxes_of_a_passage_are_its_lines(open_client, manual):
    client = open_client({"manual": manual / "manual"}, originals=True)
    text = client.get("/documents/m.pdf").json()["text"]
    start, stop = text.index("valve opens"), text.index("eight bar") + 9
    first, second = client.get("/boxes/m.pdf", params={"start": start, "stop": stop}).json()[
        "boxes"
    ]
    assert first["page"] == second["page"] == 1
    assert first["left"] > second["left"] and first["bottom"] > second["top"]
    third = client.get(
        "/boxes/m.pdf", params={"start": text.index("pump"), "stop": len(text)}
    ).json()["boxes"]
    assert [box["page"] for box in third] == [2]


def test_boxes_behind_signs_beyond_the_first_plane(open_client, tmp_path):
    pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed: pip install '.[files]'")
    lines = ["ZZZZZZZZ is the mark of the", "relief valve, which opens."]
    for name, sign in (("plain", "Z"), ("marked", "\U0001f600")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.pdf").write_bytes(make_pdf([lines], read_as={"Z": sign}))
        build_index(tmp_path / name, tmp_path / f"{name}-index", model=FakeEmbedder())
    client = open_client(
        {name: tmp_path / f"{name}-index" for name in ("plain", "marked")}, originals=True
    )

    def boxes(name):
        text = client.get(f"/documents/m.pdf?index={name}").json()["text"]
        span = {"start": text.index("relief"), "stop": text.index("valve") + 5}
        return client.get("/boxes/m.pdf", params={"index": name, **span}).json()["boxes"]

    assert boxes("marked") == boxes("plain") != []


def test_a_page_comes_as_a_picture_with_the_passage_marked(open_client, manual):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    client = open_client({"manual": manual / "manual"}, originals=True)
    marks = []
    for asked in (
        {"page": 1},
        {"page": 1, "start": 0, "stop": 30},
        {"page": 2, "start": 0, "stop": 30},
    ):
        answer = client.get("/pages/m.pdf", params=asked)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
        with image.open(io.BytesIO(answer.content)) as picture:
            colors = {color: count for count, color in picture.getcolors(1 << 20)}
        marks.append(colors.get((255, 230, 130), 0))
    assert marks[0] == marks[2] == 0 < marks[1]


@pytest.mark.parametrize("where", ["/boxes/{}?start=0&stop=5", "/pages/{}?page=1"])
def test_nothing_is_looked_at_but_an_unchanged_pdf(open_client, manual, where):
    client = open_client({"manual": manual / "manual"}, originals=True)
    off = open_client({"manual": manual / "manual"})
    assert client.get(where.format("m.pdf")).status_code == 200
    refused = [
        off.get(where.format("m.pdf")),
        *(client.get(where.format(name)) for name in ("note.md", "none")),
    ]
    refused += [client.get("/pages/m.pdf?page=3")]
    for harm in (b"\n", b"%PDF-1.4 damaged"):
        (manual / "pdf" / "m.pdf").write_bytes(harm)
        refused.append(client.get(where.format("m.pdf")))
    assert {answer.status_code for answer in refused} == {404}
    assert not any(str(manual) in answer.text for answer in refused)
    assert client.get("/boxes/m.pdf?start=0&stop=20001").status_code == 422
