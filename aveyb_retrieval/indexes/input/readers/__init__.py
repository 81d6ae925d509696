"""Readers of files that hold one document each: PDF, DOCX, HTML, EPUB, Markdown and plain text."""
