// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

// The programs that `bench inspect` reads: the three kinds that CPython's own benchmark of its
// external inspection uses.
namespace speedbump::stacks {

// Short and long functions, recursion, calls five deep; always on the CPU.
inline constexpr std::string_view kBasicProgram = R"(
import math

def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def numbers():
    total = 0.0
    for i in range(1000):
        total += math.sqrt(i) * math.sin(i)
    return total

def texts():
    words = [f"word_{i}" for i in range(200)]
    return sorted(" ".join(words).upper().split())

def level_five(n): return sum(range(n))
def level_four(n): return level_five(n) + 1
def level_three(n): return level_four(n) + 1
def level_two(n): return level_three(n) + 1
def level_one(n): return level_two(n) + 1

def turn(i):
    if i % 50 == 0:
        fibonacci(12)
    elif i % 10 == 0:
        numbers()
    elif i % 3 == 0:
        texts()
    else:
        level_one(500)

def main():
    i = 0
    while True:
        i += 1
        turn(i)

print("ready", flush=True)
main()
)";

// 900 frames that sleep.
inline constexpr std::string_view kDeepStaticProgram = R"(
import sys, time
sys.setrecursionlimit(5000)

def factorial(n):
    if n <= 1:
        print("ready", flush=True)
        time.sleep(100000)
        return 1
    return n * factorial(n - 1)

factorial(900)
)";

// Some 40 threads, up to 100, that compute and sleep in turn, come and go.
inline constexpr std::string_view kThreadsProgram = R"(
import math, random, threading, time

def compute():
    total = 0.0
    for _ in range(10000):
        total += math.sin(random.random()) * math.cos(random.random())
    return total

def rest():
    time.sleep(0.1)

def mixed():
    for _ in range(100):
        if random.random() > 0.3:
            compute()
        else:
            rest()

def start(count):
    for _ in range(count):
        threading.Thread(target=mixed, daemon=True).start()

start(40)
print("ready", flush=True)
while True:
    time.sleep(0.5)
    missing = 40 - threading.active_count()
    if missing > 0:
        start(missing)
    elif threading.active_count() < 95 and random.random() > 0.8:
        start(random.randint(1, 5))
)";

} // namespace speedbump::stacks
