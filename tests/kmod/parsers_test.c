/* SPDX-License-Identifier: MIT */
/*
 * The module's parsers under the address and undefined sanitizers: what they accept, and that text
 * and files made at random get an errno and nothing else. What they decide in a kernel is tested in
 * module_test.c.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "make_elf.h"
#include "sb_elf.h"

static int passed, failed;

#define CHECK(condition)                                           \
    do {                                                           \
        if (condition) {                                           \
            passed++;                                              \
        } else {                                                   \
            failed++;                                              \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        }                                                          \
    } while (0)

static int parse(const char* text, struct sb_command* command) {
    /* a copy of the exact size: a byte read too far is found */
    size_t length = strlen(text);
    char* copy = malloc(length ? length : 1);
    memcpy(copy, text, length);
    int ret = sb_command_parse(copy, length, command);
    free(copy);
    return ret;
}

static void commands(void) {
    struct sb_command command;
    char path[SB_PATH_MAX + 1];

    CHECK(parse("+/bin/x:f 100 pid=7\n", &command) == 0);
    CHECK(command.verb == SB_ADD && command.has_delay && command.delay_ns == 100);
    CHECK(command.has_pid && command.pid == 7 && !command.has_offset);
    CHECK(!strcmp(command.name, "/bin/x:f") && !strcmp(sb_command_symbol(&command), "f"));
    sb_command_path(&command, path);
    CHECK(!strcmp(path, "/bin/x"));
    CHECK(parse("+/bin/x:0x1aF", &command) == 0 && command.has_offset && command.offset == 0x1af);
    CHECK(parse("+/bin/x:0x7fffffffffffffff", &command) == 0);
    CHECK(parse("+/bin/x:0x8000000000000000", &command) == -EINVAL);
    CHECK(parse("+/bin/x:0xfffffffffffffffffff", &command) == -EINVAL);
    CHECK(parse("+/bin/x:0", &command) == 0 && !command.has_offset);
    CHECK(parse("+/bin/x:a:b", &command) == 0 && !strcmp(sb_command_symbol(&command), "a:b"));
    CHECK(parse("+/bin/x:f   100  ", &command) == 0 && command.delay_ns == 100);
    CHECK(parse("=/bin/x:f 0", &command) == 0 && command.verb == SB_UPDATE);
    CHECK(parse("=/bin/x:f", &command) == -EINVAL);
    CHECK(parse("-/bin/x:f", &command) == 0 && command.verb == SB_REMOVE);
    CHECK(parse("-*", &command) == 0 && command.verb == SB_REMOVE_ALL);
    CHECK(parse("+/bin/x:f pid=2147483647", &command) == 0 && command.pid == 2147483647);
    CHECK(parse("+/bin/x:f pid=2147483648", &command) == -EINVAL);
    CHECK(parse("+/bin/x:f 10000000000", &command) == 0);
    CHECK(parse("+/bin/x:f 10000000001", &command) == -ERANGE);
    CHECK(parse("+/bin/x:f 184467440737095516160000", &command) == -ERANGE);
    CHECK(parse("", &command) == -EINVAL && parse("\n", &command) == -EINVAL);
    u64 value;
    CHECK(sb_number_parse("1\n", 2, 1, &value) == 0 && value == 1);
    CHECK(sb_number_parse("2", 1, 1, &value) == -ERANGE);
    CHECK(sb_number_parse("", 0, 1, &value) == -EINVAL);
}

static void random_commands(unsigned rounds) {
    static const char* const parts[] = {"+",    "-",  "=",           "*",        "/a",
                                        ":",    "f",  " ",           "0x",       "9",
                                        "pid=", "\n", "10000000000", "/bin/x:f", "-1"};
    unsigned random = 1;
    int bad = 0;
    for (unsigned i = 0; i < rounds; i++) {
        char text[1200];
        size_t length = 0;
        struct sb_command command;
        for (int n = rand_r(&random) % 12; n; n--) {
            const char* part = parts[(unsigned)rand_r(&random) % (sizeof(parts) / sizeof(*parts))];
            for (int again = rand_r(&random) % 50 ? 1 : rand_r(&random) % 80; again; again--) {
                if (length + strlen(part) > sizeof(text)) break;
                memcpy(text + length, part, strlen(part));
                length += strlen(part);
            }
        }
        if (length && rand_r(&random) % 4 == 0)
            text[(size_t)rand_r(&random) % length] = (char)rand_r(&random);
        char* copy = malloc(length ? length : 1);
        memcpy(copy, text, length);
        int ret = sb_command_parse(copy, length, &command);
        free(copy);
        if (ret && ret != -EINVAL && ret != -ENAMETOOLONG && ret != -ERANGE) bad++;
        if (!ret && command.verb != SB_REMOVE_ALL &&
            (command.name[0] != '/' || strpbrk(command.name, " \n\t\r") ||
             command.path_length > SB_PATH_MAX ||
             strlen(sb_command_symbol(&command)) > SB_SYMBOL_MAX || length > SB_COMMAND_MAX))
            bad++;
    }
    CHECK(bad == 0);
}

struct memory {
    const char* data;
    size_t size;
};

static ssize_t read_memory(void* context, void* buffer, size_t length, u64 offset) {
    const struct memory* memory = context;
    if (offset > memory->size || length > memory->size - offset) abort(); /* it checks before */
    memcpy(buffer, memory->data + offset, length);
    return (ssize_t)length;
}

static int resolve(const char* data, size_t size, const char* symbol, u64* offset) {
    struct memory memory = {data, size};
    const struct sb_reader reader = {read_memory, &memory, size};
    return sb_elf_symbol(&reader, symbol, offset);
}

static char* made_file(const struct test_elf* elf, size_t* size) {
    char path[] = "/tmp/kmod_parsers_XXXXXX";
    int fd = mkstemp(path);
    struct stat status;
    char* data = NULL;
    if (fd >= 0 && !make_elf(path, elf) && !fstat(fd, &status)) {
        *size = (size_t)status.st_size;
        data = malloc(*size);
        if (pread(fd, data, *size, 0) != status.st_size) abort();
    }
    close(fd);
    unlink(path);
    if (!data) abort();
    return data;
}

static void elf_files(unsigned rounds) {
    const uint64_t code = SB_TEST_CODE_ADDRESS;
    const struct test_symbol symtab[] = {
        {"data", STT_OBJECT, STB_GLOBAL, 1, code + 1, 0},
        {"twice@V1", STT_FUNC, STB_GLOBAL, 1, code + 2, 0},
        {"twice@@V2", STT_FUNC, STB_GLOBAL, 1, code + 3, 0},
        {"fun", STT_FUNC, STB_LOCAL, 1, code + 4, 0},
        {"fun", STT_FUNC, STB_GLOBAL, 1, code + 5, 0},
    };
    const struct test_symbol dynsym[] = {
        {"dynamic", STT_FUNC, STB_GLOBAL, 1, code + 6, 0x8002},
        {"dynamic", STT_FUNC, STB_GLOBAL, 1, code + 7, 3},
    };
    struct test_elf elf = {.symtab = symtab,
                           .symtab_count = 5,
                           .dynsym = dynsym,
                           .dynsym_count = 2,
                           .filler_symbols = 5000};
    size_t size = 0;
    char *good = made_file(&elf, &size), *bad = malloc(size);
    u64 offset = 0;

    CHECK(resolve(good, size, "fun", &offset) == 0 && offset == SB_TEST_CODE_OFFSET + 5);
    CHECK(resolve(good, size, "twice", &offset) == 0 && offset == SB_TEST_CODE_OFFSET + 3);
    CHECK(resolve(good, size, "dynamic", &offset) == 0 && offset == SB_TEST_CODE_OFFSET + 7);
    CHECK(resolve(good, size, "data", &offset) == -ENOENT);
    CHECK(resolve(good, size, "filler_a", &offset) == 0 && offset == SB_TEST_CODE_OFFSET);
    CHECK(resolve(good, size, "filler_aah", &offset) == 0);
    /* every cut gives an errno or, where only the rest of a table is missing, nothing found */
    int wrong = 0;
    for (size_t cut = 0; cut < size; cut += 1 + size / 400) {
        char* copy = malloc(cut ? cut : 1);
        memcpy(copy, good, cut);
        int ret = resolve(copy, cut, "fun", &offset);
        wrong += ret != -ENOEXEC;
        free(copy);
    }
    CHECK(wrong == 0);
    unsigned random = 7;
    wrong = 0;
    const size_t tables = sizeof(Elf64_Shdr) * 8;
    for (unsigned i = 0; i < rounds; i++) {
        memcpy(bad, good, size);
        for (int change = 1 + rand_r(&random) % 12; change; change--) {
            static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
            size_t at = rand_r(&random) % 3 == 0   ? (size_t)rand_r(&random) % size
                        : rand_r(&random) % 2 == 0 ? (size_t)rand_r(&random) % 128
                                                   : size - 1 - (size_t)rand_r(&random) % tables;
            bad[at] = (char)(rand_r(&random) % 2 ? values[(unsigned)rand_r(&random) % 5]
                                                 : rand_r(&random));
        }
        int ret = resolve(bad, size, i % 2 ? "fun" : "a", &offset);
        wrong += ret && ret != -ENOENT && ret != -ENOEXEC;
        wrong += !ret && offset >= size;
    }
    CHECK(wrong == 0);
    free(good);
    free(bad);
}

int main(void) {
    commands();
    random_commands(200000);
    elf_files(2000);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
