# SPDX-License-Identifier: MIT
"""Celery over redis: a task, and who asks for it."""

import os

from celery import Celery

from shop.rounds import serve

ADDRESS = os.environ.get("SHOP_BROKER", "redis://127.0.0.1/0")
app = Celery("shop", broker=ADDRESS, backend=ADDRESS)
app.conf.broker_connection_retry_on_startup = True


def price_of(number: int) -> int:
    return 100 + 7 * number


@app.task
def bill(number: int) -> int:
    return price_of(number)


def main() -> None:
    serve(lambda: bill.delay(3).get(timeout=60))
