/* SPDX-License-Identifier: MIT */
/* The client sbctl. */
#include "module_tests.h"

/* Runs sbctl; its exit status, and what it printed. */
static int sbctl(const char* arguments, char* output, size_t space) {
    char line[1024];
    snprintf(line, sizeof(line), "/bin/sbctl %s 2>&1", arguments);
    fflush(stdout);
    FILE* pipe = popen(line, "r");
    size_t length = pipe ? fread(output, 1, space - 1, pipe) : 0;
    output[length] = '\0';
    int status = pipe ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void sbctl_speaks(void) {
    static const struct {
        const char* arguments;
        int status;
        const char* says;
    } cases[] = {
        {"--help", 0, "Examples:"},
        {"", 2, ""},
        {"nonsense", 2, ""},
        {"add", 2, ""},
        {"add " WORK " 5minutes", 2, "no known unit"},
        {"add " WORK " 5us --pid=-1", 2, ""},
        {"add " WORK " 20us", 0, ""},
        {"add " WORK " 20us", 1, "is there already"},
        {"add " SELF ":stepped_work --pid=1", 0, ""},
        {"add /no/such:f", 1, "no such file"},
        {"add /dev/null:f", 1, "not a program"},
        {"add '/a b:f 5'", 1, "malformed"},
        {"add nonsense", 1, "malformed"},
        {"add " SELF ":refused_entry", 1, "known to be safe to probe"},
        {"add " SELF ":f 11s", 1, "over 10 s"},
        {"update " WORK " 30us --pid=1", 0, ""},
        {"update " WORK, 2, ""},
        {"delay 7us", 0, ""},
        {"enable", 0, ""},
        {"status", 0, "enabled:        yes\ntargets:        2 of 64\n"},
        {"list", 0, WORK "                30us             0"},
        {"list --json", 0, "\"schema\": \"speedbump/sbctl-list/1\""},
        {"list --json", 0, "\"delay_ns\": 1000000"},
        {"status --json", 0, "\"default_delay_ns\": 7000"},
        {"disable", 0, ""},
        {"remove " WORK, 0, ""},
        {"remove " WORK, 1, "no such target"},
        {"remove '*'", 1, "malformed"},
        {"list", 0, "stepped_work"},
        {"clear", 0, ""},
        {"status", 0, "targets:        0 of 64"},
    };
    char output[4096], symbol[200];
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int status = sbctl(cases[i].arguments, output, sizeof(output));
        CHECK(status == cases[i].status && strstr(output, cases[i].says), "sbctl %s: %d %s",
              cases[i].arguments, status, output);
    }
    memset(symbol, 's', sizeof(symbol));
    snprintf(symbol + 150, 2, "%s", "");
    char arguments[400];
    snprintf(arguments, sizeof(arguments), "add %s:%s", SELF, symbol);
    CHECK(sbctl(arguments, output, sizeof(output)) == 1 && strstr(output, "longer than"), "%s",
          output);
    CHECK(unload_module() == 0);
    CHECK(sbctl("list", output, sizeof(output)) == 1 && strstr(output, "is not loaded"), "%s",
          output);
    CHECK(load_module("max_targets=1") == 0);
    CHECK(sbctl("add " WORK, output, sizeof(output)) == 0, "%s", output);
    CHECK(sbctl("add " SELF ":stepped_work", output, sizeof(output)) == 1 &&
              strstr(output, "limit of targets"),
          "%s", output);
    CHECK(unload_module() == 0 && load_module("") == 0);
}
