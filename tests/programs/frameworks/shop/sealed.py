# SPDX-License-Identifier: MIT
"""TLS without a network: a handshake and a message, by Python's ssl over memory.

main() takes the paths of a certificate and of its key as arguments.
"""

import hashlib
import ssl
import sys

from shop.rounds import serve


def message() -> str:
    ends = []
    for context, is_server in ((client, False), (server, True)):
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends.append((context.wrap_bio(into, out, server_side=is_server), into, out))
    for _ in range(3):
        for here, there in (ends, ends[::-1]):
            try:
                here[0].do_handshake()
            except ssl.SSLWantReadError:
                pass
            there[1].write(here[2].read())
    ends[0][0].write(b"item")
    ends[1][1].write(ends[0][2].read())
    return hashlib.sha256(ends[1][0].read()).hexdigest()


def main() -> None:
    global client, server
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(sys.argv[1], sys.argv[2])
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    serve(message)
