// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "util/result.h"

namespace speedbump::control {

// Serves one page and its data over HTTP on the loopback interface, on a thread of its own, to
// whoever has the random token in its address. Everyone else on the host gets 404 for whatever is
// asked. Signals are the caller's: to be made once they are blocked.
class PageServer {
  public:
    // `port` 0: any that is free. An error names the port.
    static Result<std::unique_ptr<PageServer>> open(uint16_t port);
    // Ends the thread; a request that is being answered may take some seconds more, where its
    // client is slow.
    ~PageServer();

    // "http://127.0.0.1:PORT/TOKEN/"
    const std::string& address() const;
    // What GET on the address, and on "data" below it, is answered with from now on. Any thread.
    void set_page(std::string html);
    void set_data(std::string json);
    // How often the data that is there now has been asked for. Any thread.
    uint64_t asked_for_data() const;
    // Whether the data was ever asked for. Any thread.
    bool has_reader() const;

  private:
    struct Impl;
    explicit PageServer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace speedbump::control
