"""Changes to bytes and lines that need no knowledge of the format."""

from tests.robustness.mutators.registry import Target, mutator

TEXTS = ("*.txt", "*.tsv", "*.conll", "*.conllu", "*.jsonl", "*.toml", "*.json", "*.csv", "*.src", "*.trg")


@mutator("bytes")
def flip_bits(target: Target) -> str:
    data = bytearray(target.path.read_bytes())
    count = min(target.random.choice([1, 1, 2, 8, 100]), len(data))
    for _ in range(count):
        data[target.random.randrange(len(data))] ^= 1 << target.random.randrange(8)
    target.path.write_bytes(data)
    return f"flip {count} bits"


@mutator("bytes")
def flip_bits_at_the_start(target: Target) -> str:
    data = bytearray(target.path.read_bytes())
    for _ in range(min(3, len(data))):
        data[target.random.randrange(min(64, len(data)))] ^= 1 << target.random.randrange(8)
    target.path.write_bytes(data)
    return "flip 3 bits of the first 64 bytes"


@mutator("bytes")
def insert_bytes(target: Target) -> str:
    data, where = target.path.read_bytes(), 0
    added = target.random.choice(
        [target.random.randbytes(target.random.choice([1, 7, 4096])), b"\0" * 100, b"\xff\xfe"]
    )
    where = target.random.randint(0, len(data))
    target.path.write_bytes(data[:where] + added + data[where:])
    return f"insert {len(added)} bytes at {where}"


@mutator("bytes")
def delete_bytes(target: Target) -> str:
    data = target.path.read_bytes()
    where, count = target.random.randint(0, len(data)), target.random.choice([1, 2, 8, 500])
    target.path.write_bytes(data[:where] + data[where + count :])
    return f"delete {count} bytes at {where}"


@mutator("bytes")
def truncate(target: Target) -> str:
    data = target.path.read_bytes()
    size = target.random.randrange(max(1, len(data)))
    target.path.write_bytes(data[:size])
    return f"truncate from {len(data)} to {size} bytes"


@mutator("bytes")
def empty(target: Target) -> str:
    target.path.write_bytes(b"")
    return "empty"


@mutator("bytes")
def double(target: Target) -> str:
    target.path.write_bytes(target.path.read_bytes() * 2)
    return "append a second copy"


@mutator("bytes")
def fill_with_zeros(target: Target) -> str:
    data = bytearray(target.path.read_bytes())
    where = target.random.randrange(max(1, len(data)))
    end = target.random.choice([len(data), min(len(data), where + 512)])
    data[where:end] = bytes(max(0, end - where))
    target.path.write_bytes(data)
    return f"zero bytes {where} to {end}"


@mutator("bytes")
def replace_by_noise(target: Target) -> str:
    target.path.write_bytes(target.random.randbytes(target.path.stat().st_size or 100))
    return "random bytes of the same size"


@mutator("text", *TEXTS)
def invalid_utf8(target: Target) -> str:
    return _in_a_line(target, target.random.choice([b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]))


@mutator("text", *TEXTS)
def control_characters(target: Target) -> str:
    odd = ["\x00", "\x1b]0;x\x07\x1b[31m", "\r", "\x85", "\u2028", "\ufeff", "\u202e", "\x0b", "\x1f"]
    return _in_a_line(target, target.random.choice(odd).encode())


@mutator("text", *TEXTS)
def long_line(target: Target) -> str:
    return _in_a_line(target, target.random.choice([b"a", b"a ", "é".encode(), b"\t"]) * 1_000_000)


@mutator("text", *TEXTS)
def remove_a_line(target: Target) -> str:
    lines = target.path.read_bytes().splitlines(keepends=True)
    number = target.random.randrange(max(1, len(lines)))
    target.path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    return f"remove line {number + 1}"


@mutator("text", *TEXTS)
def repeat_a_line(target: Target) -> str:
    lines = target.path.read_bytes().splitlines(keepends=True) or [b"\n"]
    number = target.random.randrange(len(lines))
    target.path.write_bytes(b"".join([*lines[:number], lines[number] * 3, *lines[number:]]))
    return f"repeat line {number + 1}"


@mutator("text", *TEXTS)
def other_separators(target: Target) -> str:
    old, new = target.random.choice(
        [(b"\t", b" "), (b"\t", b"\t\t"), (b"\n", b"\r\n"), (b"\n\n", b"\n"), (b" ", b"\t")]
    )
    target.path.write_bytes(target.path.read_bytes().replace(old, new))
    return f"replace {old!r} by {new!r}"


def _in_a_line(target: Target, added: bytes) -> str:
    data = target.path.read_bytes()
    where = target.random.randint(0, len(data))
    target.path.write_bytes(data[:where] + added + data[where:])
    return f"insert {len(added)} bytes {added[:12]!r} at {where}"


@mutator("swap")
def swap_with_another_file(target: Target) -> str:
    others = target.beside()
    if not others:
        return empty(target)
    other = target.random.choice(others)
    mine, theirs = target.path.read_bytes(), other.read_bytes()
    target.path.write_bytes(theirs)
    other.write_bytes(mine)
    return f"swap with {other.name}"


@mutator("swap")
def overwrite_by_another_file(target: Target) -> str:
    others = target.beside()
    if not others:
        return double(target)
    other = target.random.choice(others)
    target.path.write_bytes(other.read_bytes())
    return f"overwrite by {other.name}"
