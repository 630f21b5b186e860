"""What a file that is not text is, told by its first bytes."""

__all__ = ["hex_dump", "image_type", "kind_of"]

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", 0, b"", "image/png"),
    (b"\xff\xd8\xff", 0, b"", "image/jpeg"),
    (b"GIF87a", 0, b"", "image/gif"),
    (b"GIF89a", 0, b"", "image/gif"),
    (b"RIFF", 8, b"WEBP", "image/webp"),
)

_KINDS = (
    (0, b"\x7fELF", "ELF program or library"),
    (0, b"%PDF-", "PDF document"),
    (0, b"PK\x03\x04", "ZIP archive (also wheel, jar, docx, xlsx)"),
    (0, b"PK\x05\x06", "empty ZIP archive"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"\xfd7zXZ\x00", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"7z\xbc\xaf\x27\x1c", "7-Zip archive"),
    (257, b"ustar", "tar archive"),
    (0, b"SQLite format 3\x00", "SQLite database"),
    (0, b"\x00asm", "WebAssembly module"),
    (0, b"\xca\xfe\xba\xbe", "Java class or Mach-O universal file"),
    (0, b"\xcf\xfa\xed\xfe", "Mach-O program or library"),
    (0, b"MZ", "Windows program or library"),
    (0, b"!<arch>\n", "static library (ar)"),
    (0, b"\x93NUMPY", "NumPy array"),
    (0, b"PAR1", "Parquet table"),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5 data"),
    (0, b"GGUF", "GGUF model"),
    (0, b"\x80\x04\x95", "Python pickle"),
    (0, b"\x80\x05\x95", "Python pickle"),
    (0, b"OggS", "Ogg media"),
    (0, b"ID3", "MP3 audio"),
    (0, b"fLaC", "FLAC audio"),
    (4, b"ftyp", "MP4, HEIC or AVIF media"),
    (8, b"WAVE", "WAV audio"),
    (0, b"BM", "BMP picture"),
    (0, b"II*\x00", "TIFF picture"),
    (0, b"MM\x00*", "TIFF picture"),
    (0, b"\x00\x00\x01\x00", "icon"),
    (0, b"wOF2", "web font"),
    (0, b"\x00\x01\x00\x00", "TrueType font"),
    (0, b"DIRC", "git index"),
    (0, b"PACK", "git pack"),
    (0, b"\xff\xfe\x00\x00", "UTF-32 text"),
)


def image_type(head: bytes) -> str | None:
    """Return the MIME type of a picture that models can be shown, or `None`."""
    for start, offset, second, mime_type in _IMAGES:
        if head.startswith(start) and head[offset : offset + len(second)] == second:
            return mime_type
    return None


def kind_of(head: bytes) -> str:
    """Return what the file probably is."""
    if (mime_type := image_type(head)) is not None:
        return f"{mime_type} picture"
    for offset, magic, kind in _KINDS:
        if head[offset : offset + len(magic)] == magic:
            return kind
    pairs = head[: len(head) // 2 * 2]
    for start, kind in ((1, "UTF-16 text without a byte order mark"), (0, "UTF-16 (big endian) text without a mark")):
        nuls, others = pairs[start::2], pairs[1 - start :: 2]
        if len(pairs) >= 8 and nuls.count(0) * 10 >= len(nuls) * 8 and others.count(0) * 10 < len(others):
            return kind
    return "zero bytes" if head and not any(head) else "data of unknown kind"


def hex_dump(data: bytes) -> str:
    """Return `data` as `hexdump -C` shows it."""
    rows: list[str] = []
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{offset:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{text}|")
    return "\n".join(rows)
