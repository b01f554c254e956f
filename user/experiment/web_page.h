// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "util/result.h"

namespace speedbump::experiment {

// Gets pages by http and https. There are two: over libcurl, which keeps its connection from one
// page to the next (web_page_curl.cpp), and by the program curl, for a statically linked speedbump
// (web_page_program.cpp): libcurl needs libraries that there are no static ones of.
class WebPage {
  public:
    WebPage();
    ~WebPage();
    // kIo when the page can't be had within `patience`, or is longer than `max_size`.
    Result<std::string> get(const std::string& url, std::chrono::milliseconds patience,
                            size_t max_size);

  private:
    struct Connection;
    std::unique_ptr<Connection> connection_;
};

} // namespace speedbump::experiment
