/* SPDX-License-Identifier: MIT */
/* Files, formats and commands: what may be asked of the module, by whom, and what it refuses. */
#include "module_tests.h"

/* Files and formats */

static mode_t mode_of(const char* file) {
    struct stat status;
    return stat(file, &status) ? 0 : status.st_mode & 07777;
}

void files_and_formats(void) {
    CHECK(mode_of(SYSFS "enabled") == 0644);
    CHECK(mode_of(SYSFS "default_delay_ns") == 0644);
    CHECK(mode_of(SYSFS "targets") == 0200);
    CHECK(mode_of(SYSFS "targets_list") == 0400);
    CHECK(mode_of(SYSFS "stats") == 0444);
    CHECK(mode_of("/dev/speed_bump") == 0600);
    char* text = slurp(SYSFS "enabled");
    CHECK(!strcmp(text, "0\n"), "%s", text);
    free(text);
    CHECK(command("+" WORK " 5000\n") == 0);
    CHECK(command("+" SELF ":stepped_work 7 pid=1") == 0);
    text = slurp(SYSFS "targets_list");
    CHECK(!strncmp(text, WORK " delay_ns=5000 hits=0 ", strlen(WORK) + 22), "%s", text);
    CHECK(strstr(text, "\n" SELF ":stepped_work delay_ns=7 hits=0 pid=1 ") != NULL, "%s", text);
    free(text);
    text = slurp(SYSFS "stats");
    CHECK(!strncmp(text, "enabled: 0\ntargets: 2\ntotal_hits: ", 34), "%s", text);
    CHECK(strstr(text, "\ntotal_delay_ns: ") != NULL, "%s", text);
    free(text);
    CHECK(enable(true) == 0 && stat_of("enabled") == 1);
    CHECK(enable(true) == 0 && stat_of("enabled") == 1);
    CHECK(enable(false) == 0 && stat_of("enabled") == 0);
    static const char* const bad[] = {"", "2", "-1", "x", "1 ", " 1", "1\n\n", "01x", "yes"};
    for (size_t i = 1; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK(put(SYSFS "enabled", bad[i], strlen(bad[i])) == EINVAL, "%s", bad[i]);
    CHECK(put(SYSFS "default_delay_ns", "10000000000\n", 12) == 0);
    CHECK(put(SYSFS "default_delay_ns", "10000000001", 11) == ERANGE);
    CHECK(put(SYSFS "default_delay_ns", "99999999999999999999999", 23) == ERANGE);
    CHECK(put(SYSFS "default_delay_ns", "-5", 2) == EINVAL);
    CHECK(put(SYSFS "default_delay_ns", "5us", 3) == EINVAL);
    text = slurp(SYSFS "default_delay_ns");
    CHECK(!strcmp(text, "10000000000\n"), "%s", text);
    free(text);
}

/* Commands */

void errno_of_commands(void) {
    static const struct {
        const char* text;
        int error;
    } cases[] = {
        {"", EINVAL}, /* skipped by write(2): nothing is written */
        {"\n", EINVAL},
        {"+", EINVAL},
        {"-", EINVAL},
        {"=", EINVAL},
        {"x" WORK, EINVAL},
        {WORK, EINVAL},
        {" +" WORK, EINVAL},
        {"+ " WORK, EINVAL},
        {"++" WORK, EINVAL},
        {"+" SELF, EINVAL},
        {"+" SELF ":", EINVAL},
        {"+:work", EINVAL},
        {"+bin/module_test:work", EINVAL},
        {"+./x:work", EINVAL},
        {"+" WORK " 5x", EINVAL},
        {"+" WORK " x", EINVAL},
        {"+" WORK " -5", EINVAL},
        {"+" WORK " +5", EINVAL},
        {"+" WORK " 0x10", EINVAL},
        {"+" WORK " 5 6", EINVAL},
        {"+" WORK " 5 pid=", EINVAL},
        {"+" WORK " 5 pid=-1", EINVAL},
        {"+" WORK " 5 pid=0", EINVAL},
        {"+" WORK " 5 pid=1x", EINVAL},
        {"+" WORK " 5pid=1", EINVAL},
        {"+" WORK " 5 pid=1 2", EINVAL},
        {"+" WORK " pid=1 5", EINVAL},
        {"+" WORK " 5 pid=99999999999", EINVAL},
        {"+" WORK " 5 PID=1", EINVAL},
        {"+" WORK " 5\n+" WORK, EINVAL},
        {"+" WORK "\n\n", EINVAL},
        {"+" WORK "\t5", EINVAL},
        {"+/bin/mod ule:work", EINVAL},
        {"+" SELF ":wo rk", EINVAL},
        {"+" WORK "\r\n", EINVAL},
        {"+" SELF ":0x", EINVAL},
        {"+" SELF ":0xzz", EINVAL},
        {"=" WORK, EINVAL},
        {"=" WORK " pid=1", EINVAL},
        {"-" WORK " 5", EINVAL},
        {"-* 5", EINVAL},
        {"-*x", EINVAL},
        {"+*", EINVAL},
        {"=* 5", EINVAL},
        {"+/no/such/file:work", ENOENT},
        {"+" SELF ":no_such_symbol", ENOENT},
        {"+" SELF "/work:work", ENOENT},
        {"-" WORK, ENOENT},
        {"=" WORK " 5", ENOENT},
        {"+" SELF ":0xffffffffff", ENOENT},
        {"+" SELF ":0", ENOENT},
        {"+" WORK " 10000000001", ERANGE},
        {"+" WORK " 18446744073709551617", ERANGE},
        {"=" WORK " 10000000001", ERANGE},
        {"+" WORK " 10000000000", 0},
        {"+" WORK " 10000000000", EEXIST},
        {"+" WORK, EEXIST},
        {"=" WORK " 0", 0},
        {"=" WORK " 5 pid=1\n", 0},
        {"-" WORK "\n", 0},
        {"-" WORK, ENOENT},
        {"+" WORK " pid=1", 0},
        {"-*\n", 0},
        {"-*", 0},
        {"+" WORK "\n", 0},
        {"-" WORK, 0},
        {"+" WORK " 5 pid=4194303", 0},
        {"-" WORK, 0},
    };
    for (size_t i = 1; i < sizeof(cases) / sizeof(*cases); i++) {
        int error = put(SYSFS "targets", cases[i].text, strlen(cases[i].text));
        CHECK(error == cases[i].error, "'%s': %d, not %d", cases[i].text, error, cases[i].error);
    }
    CHECK(list_lines() == 0);
}

void nothing_is_smuggled_in(void) {
    static const char nul_inside[] = "+" SELF ":wo\0rk", nul_behind[] = "+" WORK "\0";
    CHECK(put(SYSFS "targets", nul_inside, sizeof(nul_inside) - 1) == EINVAL);
    CHECK(put(SYSFS "targets", nul_behind, sizeof(nul_behind) - 1) == EINVAL);
    /* sysfs hands over one page: a command padded to a page, and another behind it */
    char text[8192];
    memset(text, ' ', sizeof(text));
    memcpy(text, "+" WORK " 5", strlen("+" WORK " 5"));
    memcpy(text + 4096, "+" SELF ":stepped_work", strlen("+" SELF ":stepped_work"));
    CHECK(put(SYSFS "targets", text, sizeof(text)) != 0);
    CHECK(put(SYSFS "targets", text, 4096) == EINVAL);
    CHECK(list_lines() == 0);
}

void lengths(void) {
    char path[300], link[300];
    /* a path of exactly 256 and 257 bytes through directories */
    snprintf(path, sizeof(path), "/tmp/%0120d", 0);
    mkdir(path, 0755);
    size_t length = strlen(path);
    memset(link, 'x', sizeof(link));
    memcpy(link, path, length);
    link[length] = '/';
    link[256] = '\0';
    CHECK(symlink(SELF, link) == 0, "%s", strerror(errno));
    CHECK(command("+%s:work", link) == 0);
    CHECK(row_of("/tmp").found == false);
    CHECK(list_lines() == 1);
    CHECK(command("-%s:work", link) == 0);
    link[256] = 'x';
    link[257] = '\0';
    CHECK(command("+%s:work", link) == ENAMETOOLONG);
    char symbol[140];
    memset(symbol, 's', sizeof(symbol));
    symbol[128] = '\0';
    struct test_symbol entry = {symbol, STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS + 8, 0};
    struct test_elf elf = {.symtab = &entry, .symtab_count = 1};
    CHECK(make_elf("/tmp/long", &elf) == 0);
    CHECK(command("+/tmp/long:%s", symbol) == 0);
    CHECK(command("-/tmp/long:%s", symbol) == 0);
    symbol[128] = 's';
    symbol[129] = '\0';
    CHECK(command("+/tmp/long:%s", symbol) == ENAMETOOLONG);
    link[256] = '\0';
    unlink(link);
}

void limits(void) {
    CHECK(command("+" SELF ":sled") == 0);
    unsigned long long base = row_of(SELF ":sled").offset;
    command("-*");
    for (unsigned i = 0; i < 64; i++) CHECK(command("+" SELF ":0x%llx %u", base + i * 4, i) == 0);
    CHECK(command("+" WORK) == ENOSPC);
    CHECK(command("+" SELF ":0x%llx", base) == EEXIST);
    CHECK(list_lines() == 64);
    CHECK(stat_of("targets") == 64);
    CHECK(command("-" SELF ":0x%llx", base + 8) == 0);
    CHECK(command("+" WORK) == 0);
    CHECK(command("-*") == 0);
    CHECK(list_lines() == 0);
}

void kinds_of_files(void) {
    Elf64_Ehdr header;
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/good", &elf) == 0);
    CHECK(command("+/tmp/good:f") == 0);
    command("-*");
    char* good = malloc(65536);
    int fd = open("/tmp/good", O_RDONLY | O_CLOEXEC);
    ssize_t size = read(fd, good, 65536);
    close(fd);
    CHECK(size > 0x2000);
    write_file("/tmp/empty", "", 0);
    write_file("/tmp/text", "#!/bin/sh\necho no\n", 18);
    write_file("/tmp/short", good, 63);
    write_file("/tmp/cut", good, 4096);
    static const struct {
        const char* path;
        size_t at;
        unsigned char value;
    } changed[] = {
        {"/tmp/class32", EI_CLASS, ELFCLASS32},
        {"/tmp/other_order", EI_DATA, ELFDATA2MSB},
        {"/tmp/version", EI_VERSION, 9},
        {"/tmp/machine", offsetof(Elf64_Ehdr, e_machine), EM_PPC64},
        {"/tmp/core", offsetof(Elf64_Ehdr, e_type), ET_CORE},
        {"/tmp/object", offsetof(Elf64_Ehdr, e_type), ET_REL},
    };
    for (size_t i = 0; i < sizeof(changed) / sizeof(*changed); i++) {
        char* copy = malloc((size_t)size);
        memcpy(copy, good, (size_t)size);
        copy[changed[i].at] = (char)changed[i].value;
        write_file(changed[i].path, copy, (size_t)size);
        CHECK(command("+%s:f", changed[i].path) == ENOEXEC, "%s", changed[i].path);
        free(copy);
    }
    mkfifo("/tmp/fifo", 0644);
    static const char* const refused[] = {"/tmp/empty",
                                          "/tmp/text",
                                          "/tmp/short",
                                          "/tmp/cut",
                                          "/tmp",
                                          "/dev/null",
                                          "/dev/ttyS0",
                                          "/tmp/fifo",
                                          "/proc/cpuinfo",
                                          "/proc/kcore",
                                          "/sys/kernel/speed_bump/stats"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        uint64_t start = now_ns();
        int error = command("+%s:f", refused[i]);
        CHECK(error == ENOEXEC, "%s: %d", refused[i], error);
        CHECK(now_ns() - start < SECOND, "%s", refused[i]);
    }
    memcpy(&header, good, sizeof(header));
    CHECK(header.e_shoff != 0);
    free(good);
}

/* Swaps a program and a link to a fifo under one name. */
static void swap_forever(void) {
    while (!atomic_load(&shared->stop)) {
        if (symlink("/tmp/swap_fifo", "/tmp/swap_new")) continue;
        rename("/tmp/swap_new", "/tmp/swap_name");
        if (link("/tmp/swap_good", "/tmp/swap_new")) continue;
        rename("/tmp/swap_new", "/tmp/swap_name");
    }
}

/* A fifo has a writer only while somebody has it open to read. */
static void watch_fifo(void) {
    while (!atomic_load(&shared->stop)) {
        int fd = open("/tmp/swap_fifo", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        atomic_fetch_add(&shared->calls, 1);
        close(fd);
    }
}

/* What a name means may change while the module looks at it: it must not open what it has not
 * looked at. */
void a_name_that_changes_is_not_opened(void) {
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/swap_good", &elf) == 0 && mkfifo("/tmp/swap_fifo", 0644) == 0);
    CHECK(link("/tmp/swap_good", "/tmp/swap_name") == 0);
    pid_t swapper = spawn(swap_forever), watcher = spawn(watch_fifo);
    unsigned added = 0, refused = 0;
    for (uint64_t end = now_ns() + 2 * SECOND; now_ns() < end;) {
        int error = command("+/tmp/swap_name:f 0");
        CHECK(!error || error == ENOEXEC, "%d", error);
        ++*(error ? &refused : &added);
        command("-*");
    }
    atomic_store(&shared->stop, 1);
    reap(swapper);
    reap(watcher);
    printf("  %u times added, %u times refused\n", added, refused);
    CHECK(added > 0 && refused > 0);
    CHECK(atomic_load(&shared->calls) == 0, "%llu",
          (unsigned long long)atomic_load(&shared->calls));
}

static int drop_read_rights(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data)) return errno;
    data[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    return syscall(SYS_capset, &header, data) ? errno : 0;
}

void may_not_read(void) {
    struct test_symbol symbol = {"f", STT_FUNC, STB_GLOBAL, 1, SB_TEST_CODE_ADDRESS, 0};
    struct test_elf elf = {.symtab = &symbol, .symtab_count = 1};
    CHECK(make_elf("/tmp/secret", &elf) == 0);
    CHECK(chown("/tmp/secret", 1000, 1000) == 0 && chmod("/tmp/secret", 0) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        if (drop_read_rights()) _exit(1);
        _exit(command("+/tmp/secret:f") == EACCES ? 0 : 2);
    }
    int status = reap(pid);
    CHECK(status == 0, "%d", WEXITSTATUS(status));
}

void only_root_writes(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        int fd = open(SYSFS "targets", O_WRONLY | O_CLOEXEC); /* opened as root, used by another */
        int device = open("/dev/speed_bump", O_RDWR | O_CLOEXEC);
        if (setgid(1000) || setuid(1000)) _exit(1);
        if (command("+" WORK) != EACCES || enable(true) != EACCES) _exit(2);
        if (put(SYSFS "default_delay_ns", "5", 1) != EACCES) _exit(3);
        if (put("/dev/speed_bump", "-*", 2) != EACCES) _exit(4);
        if (write(fd, "-*", 2) != -1 || errno != EPERM) _exit(5);
        if (device < 0 || write(device, "-*", 2) != -1 || errno != EPERM) _exit(6);
        if (hold(device) != EPERM) _exit(7);
        if (open(SYSFS "targets_list", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES) _exit(8);
        _exit(0);
    }
    int status = reap(pid);
    CHECK(status == 0, "%d", WEXITSTATUS(status));
}

void update_keeps_hits(void) {
    CHECK(command("+" WORK " 0") == 0 && enable(true) == 0);
    for (int i = 0; i < 7; i++) work();
    CHECK(row_of(WORK).hits == 7);
    CHECK(command("=" WORK " 2000000") == 0);
    struct row row = row_of(WORK);
    CHECK(row.hits == 7 && row.delay_ns == 2000000 && row.delays == 0);
    CHECK(timed(work) >= 2 * MILLISECOND);
    row = row_of(WORK);
    CHECK(row.hits == 8 && row.delays == 1);
    /* disabled and enabled again: the target stays, with its count */
    enable(false);
    work();
    enable(true);
    CHECK(row_of(WORK).hits == 8);
}

/* A target without a delay keeps the default of the moment at which it was added. */
void default_delay(void) {
    CHECK(unload_module() == 0 && load_module("") == 0);
    char* text = slurp(SYSFS "default_delay_ns");
    CHECK(!strcmp(text, "1000000\n"), "%s", text);
    free(text);
    CHECK(command("+" WORK) == 0);
    CHECK(put(SYSFS "default_delay_ns", "3000000", 7) == 0);
    CHECK(command("+" SELF ":stepped_work") == 0 && enable(true) == 0);
    CHECK(row_of(WORK).delay_ns == 1000000 && row_of(SELF ":stepped_work").delay_ns == 3000000);
    CHECK(timed(stepped_work) >= 3 * MILLISECOND);
    CHECK(row_of(SELF ":stepped_work").requested_ns == 3000000);
    work();
    CHECK(row_of(WORK).requested_ns == 1000000);
    CHECK(command("=" WORK " 500") == 0 && row_of(WORK).delay_ns == 500);
}
