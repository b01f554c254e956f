# SPDX-License-Identifier: MIT
"""FastAPI: an endpoint that is a coroutine, one that runs on a thread, and a dependency."""

import asyncio

from fastapi import Depends, FastAPI
from pydantic import BaseModel

app = FastAPI()


class Item(BaseModel):
    name: str
    cents: int


async def member(name: str = "nobody") -> str:
    await asyncio.sleep(0)
    return name


def price_of(number: int) -> int:
    return 100 + 7 * number


@app.get("/item/{number}", response_model=Item)
async def item(number: int, who: str = Depends(member)):
    await asyncio.sleep(0.001)  # goes on later: one call all the same
    return Item(name=f"item {number} of {who}", cents=price_of(number))


@app.get("/report/{number}")
def report(number: int):
    return {"cents": price_of(number)}
