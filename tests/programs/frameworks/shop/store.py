# SPDX-License-Identifier: MIT
"""psycopg2 and SQLite: a query of each.

main() takes a connection, as libpq names it, as argument.
"""

import sqlite3
import sys

import psycopg2

from shop.rounds import serve

lite = sqlite3.connect(":memory:")


def from_sqlite(number: int) -> int:
    return lite.execute("SELECT 100 + 7 * ?", (number,)).fetchone()[0]


def from_postgres(number: int) -> int:
    with server.cursor() as cursor:
        cursor.execute("SELECT 100 + 7 * %s", (number,))
        return cursor.fetchone()[0]


def checkout() -> int:
    return from_sqlite(3) + from_postgres(3)


def main() -> None:
    global server
    server = psycopg2.connect(sys.argv[1])
    server.autocommit = True
    serve(checkout)
