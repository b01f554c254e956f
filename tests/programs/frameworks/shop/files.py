# SPDX-License-Identifier: MIT
"""Files by the C library: a round writes one, reads it again and renames it."""

import os

from shop.rounds import serve


def save() -> int:
    handle = os.open("shop.new", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    os.write(handle, bytes(4000))
    os.fsync(handle)
    os.close(handle)
    os.rename("shop.new", "shop.data")
    handle = os.open("shop.data", os.O_RDONLY)
    data = os.read(handle, 4000)
    os.close(handle)
    return len(data)


def main() -> None:
    serve(save)
