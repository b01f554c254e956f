# SPDX-License-Identifier: MIT
"""Call trees of which it is known which stacks they can have.

    trees.py MODE

Prints "ready" when its trees begin. stack_check knows which stacks each mode can have: function
names say where they belong ("a1" calls nothing but "a2", ...).
"""

import sys
import threading
import time


def alternating():
    # Two trees that never overlap: no stack holds an a and a b.
    def a3():
        pass

    def a2():
        a3()

    def a1():
        a2()

    def b3():
        pass

    def b2():
        b3()

    def b1():
        b2()

    print("ready", flush=True)  # here, so that it is no frame of a tree
    while True:
        a1()
        b1()


def shared():
    # One helper and one leaf under both trees; what stands above them says which leaf may be.
    def leaf():
        pass

    def helper(function):
        function()
        leaf()

    def a_leaf():
        pass

    def b_leaf():
        pass

    def a1():
        helper(a_leaf)

    def b1():
        helper(b_leaf)

    print("ready", flush=True)
    while True:
        a1()
        b1()


def generators():
    # a_inner runs only below a_outer below a1; the same for b.
    def step():
        pass

    def a_inner():
        while True:
            step()
            yield

    def b_inner():
        while True:
            step()
            yield

    def a_outer(inner):
        for _ in inner:
            yield

    def b_outer(inner):
        for _ in inner:
            yield

    a, b = a_outer(a_inner()), b_outer(b_inner())

    def a1():
        next(a)

    def b1():
        next(b)

    print("ready", flush=True)
    while True:
        a1()
        b1()


def recursion():
    # 1,000 frames of one kind, never mixed with the other.
    sys.setrecursionlimit(3000)

    def a_down(n):
        if n:
            a_down(n - 1)
        else:
            a_end()

    def a_end():
        for _ in range(20000):
            pass

    def b_down(n):
        if n:
            b_down(n - 1)
        else:
            b_end()

    def b_end():
        for _ in range(20000):
            pass

    print("ready", flush=True)
    while True:
        a_down(1000)
        b_down(1000)


def reuse():
    # Code objects made and freed all the time, at addresses that come again. a_N calls aa_N.
    source = """
def {0}{0}_{1}():
    pass
def {0}_{1}():
    for _ in range(3000):
        {0}{0}_{1}()
{0}_{1}()
"""
    texts = [(name, number) for number in range(64) for name in "ab"]
    print("ready", flush=True)
    while True:
        for name, number in texts:
            exec(compile(source.format(name, number), f"<{name}{number}>", "exec"), {})


def oversized():
    # A frame larger than a chunk of the stack (16 KiB), and one that is not, in turn.
    names = ",".join(f"x{i}" for i in range(4000))
    space = {}
    exec(
        f"""
def a_leaf(): pass
def a_big():
    if 0: {names} = range(4000)
    a_leaf()
def a1(): a_big()
def b_leaf(): pass
def b1(): b_leaf()
""",
        space,
    )
    a1, b1 = space["a1"], space["b1"]
    print("ready", flush=True)
    while True:
        a1()
        b1()


def threads():
    # Each thread has a tree of its own.
    def tree(name):
        space = {}
        exec(
            f"""
def {name}3(): pass
def {name}2(): {name}3()
def {name}1(): {name}2()
def {name}0():
    while True: {name}1()
""",
            space,
        )
        return space[name + "0"]

    for name in "abc":
        threading.Thread(target=tree(name), daemon=True).start()
    print("ready", flush=True)
    while True:
        time.sleep(1)


def zoo():
    # One of everything for a look by hand and for `dump`: asleep, so that it stays as it is.
    import asyncio

    def größe_in_日本語():
        time.sleep(1000)

    def deep(n):
        if n:
            deep(n - 1)
        else:
            time.sleep(1000)

    sys.setrecursionlimit(3000)
    space = {}
    exec(compile("def made():\n\n    sleep(1000)\n", "<made at run time>", "exec"), space)
    space["sleep"] = time.sleep

    def chain():
        def generator():
            time.sleep(1000)
            yield

        next(generator())

    async def inner():
        time.sleep(1000)

    async def outer():
        await inner()

    def run_coroutine():
        asyncio.run(outer())

    def called_from_c():
        sorted([1, 2], key=lambda _: time.sleep(1000))

    for target in (größe_in_日本語, space["made"], chain, run_coroutine, called_from_c):
        threading.Thread(target=target, daemon=True).start()
    threading.Thread(target=deep, args=(900,), daemon=True).start()
    time.sleep(0.3)
    print("ready", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
