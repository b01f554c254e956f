# SPDX-License-Identifier: MIT
"""A shop on Flask and SQLite, for slowing: each request runs the Python function price_of() once
and some sqlite3_step().

SHOP_DATABASE names the database, which stock_up() makes.
"""

import contextlib
import os
import sqlite3

import flask

ITEMS = 100

app = flask.Flask(__name__)


def stock_up(path: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, cents INTEGER)")
        database.executemany(
            "INSERT INTO items VALUES (?, ?, ?)",
            [(number, f"item {number}", 100 + 7 * number) for number in range(ITEMS)],
        )
        database.commit()


def price_of(cents: int, count: int) -> int:
    return cents * count * (90 if count >= 10 else 100) // 100


@app.get("/buy/<int:item>/<int:count>")
def buy(item: int, count: int):
    with contextlib.closing(sqlite3.connect(os.environ["SHOP_DATABASE"])) as database:
        row = database.execute("SELECT name, cents FROM items WHERE id = ?", (item,)).fetchone()
    if row is None:
        flask.abort(404)
    name, cents = row
    return {"name": name, "cents": price_of(cents, count), "worker": os.getpid()}
