# SPDX-License-Identifier: MIT
"""asyncio without a framework: a server of lines, and one client of it in the same loop."""

import asyncio
import sys


async def handle(line: bytes) -> bytes:
    await asyncio.sleep(0.001)
    return line.upper()


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(await handle(line))
        await writer.drain()
    writer.close()


async def talk() -> None:
    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        writer.write(b"item\n")
        print((await reader.readline()).decode().strip(), flush=True)


def main() -> None:
    asyncio.run(talk())
