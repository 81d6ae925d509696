"""The file that a document was read from: given out where it is asked for, from the folder that was read, unchanged."""

from __future__ import annotations

import shutil

import pytest

from aveyb_retrieval import build_index
from aveyb_retrieval.server.http import Limits
from tests.indexes.fake import FakeEmbedder

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
    client = open_client({"handbook": tmp_path / "index"}, originals=True, limits=Limits(max_answer=5000))
    return lambda name: client.get(f"/originals/{name}")


def test_it_comes_byte_by_byte_and_is_never_shown_as_a_page(ask):
    answer = ask("law/lease.md")
    assert (answer.status_code, answer.content) == (200, TEXT)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_document_says_whether_there_is_one(open_client, files, folder, tmp_path):
    paths = {"handbook": tmp_path / "index", "words": folder}
    client = open_client(paths, originals=True)
    assert client.get("/documents/pump.txt?index=handbook").json()["original"] is True
    assert client.get("/documents/doc-3?index=words").json()["original"] is False  # it was no file
    assert client.get("/originals/doc-3?index=words").status_code == 404
    off = open_client(paths)
    assert off.get("/documents/pump.txt?index=handbook").json()["original"] is False
    refused = off.get("/originals/pump.txt?index=handbook")
    assert (refused.status_code, "--originals is not given" in refused.json()["error"]) == (404, True)


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


@pytest.mark.parametrize("name", ["../secret.txt", "%2e%2e/secret.txt", "law/../../secret.txt", "/etc/passwd", "none"])
def test_only_what_is_in_the_index_is_asked_for(ask, name):
    answer = ask(name)
    assert answer.status_code == 404
    assert b"secret beside" not in answer.content


def test_a_file_beyond_the_largest_answer_is_not_read_whole(open_client, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "long.txt").write_bytes(b"word " * 2000)
    build_index(tmp_path / "files", tmp_path / "long", model=FakeEmbedder())
    client = open_client({"long": tmp_path / "long"}, originals=True, limits=Limits(max_answer=5000))
    assert client.get("/originals/long.txt").status_code == 404
