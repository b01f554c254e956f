// SPDX-License-Identifier: MIT
#pragma once

#include <bpf/libbpf.h>

namespace speedbump::engine {

// libbpf's own words about what is expected to fail somewhere are noise: while this lives it is
// silent. Not for two threads at a time.
class QuietLibbpf {
  public:
    QuietLibbpf() : before_(libbpf_set_print(nullptr)) {}
    QuietLibbpf(const QuietLibbpf&) = delete;
    QuietLibbpf& operator=(const QuietLibbpf&) = delete;
    ~QuietLibbpf() { libbpf_set_print(before_); }

  private:
    libbpf_print_fn_t before_;
};

} // namespace speedbump::engine
