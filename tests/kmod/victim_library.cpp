// SPDX-License-Identifier: MIT
// A shared library with a C++ name: victim::Service::answer(int).
namespace victim {
struct Service {
    int answer(int question);
};
__attribute__((noinline)) int Service::answer(int question) {
    return question * 2 + 1;
}
} // namespace victim

extern "C" __attribute__((noinline)) int library_work(int value) {
    return victim::Service().answer(value) + 1;
}
