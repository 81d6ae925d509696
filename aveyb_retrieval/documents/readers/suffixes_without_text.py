"""Suffixes of files that hold no text: pictures, sounds, programs, and the like."""

from __future__ import annotations

# of pictures that OCR may read
PICTURE_SUFFIXES = (
    ".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jpe", ".jp2", ".bmp", ".gif", ".webp",
    ".pbm", ".pgm", ".ppm", ".pnm",
)  # fmt: skip
# Such a file is left out: in a folder with a harmless notice, in a mail or an archive without one.
WITHOUT_TEXT = {
    *PICTURE_SUFFIXES,
    ".heic",
    ".svg",
    ".ico",
    ".psd",
    ".mp3",
    ".m4a",
    ".wav",
    ".flac",
    ".ogg",
    ".mp4",
    ".m4v",
    ".mov",
    ".avi",
    ".mkv",
    ".webm",
    ".ttf",
    ".otf",
    ".woff",
    ".woff2",
    ".eot",
    ".pyc",
    ".o",
    ".a",
    ".so",
    ".dll",
    ".exe",
    ".class",
    ".jar",
    ".whl",
    ".lock",
    ".map",
    ".css",
    ".tmp",
    ".bak",
    # what Thunderbird notes of a mail folder
    ".msf",
}
