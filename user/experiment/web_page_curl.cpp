// SPDX-License-Identifier: MIT
#include <curl/curl.h>

#include "experiment/web_page.h"
#include "util/text.h"

namespace speedbump::experiment {

namespace {

struct Answer {
    std::string text;
    size_t max_size;
};

size_t take(char* data, size_t size, size_t count, void* to) {
    auto& answer = *static_cast<Answer*>(to);
    if (answer.text.size() + size * count > answer.max_size) return 0;
    answer.text.append(data, size * count);
    return size * count;
}

} // namespace

struct WebPage::Connection {
    CURL* curl = curl_easy_init();
    ~Connection() { curl_easy_cleanup(curl); }
};

WebPage::WebPage() : connection_(std::make_unique<Connection>()) {}
WebPage::~WebPage() = default;

Result<std::string> WebPage::get(const std::string& url, std::chrono::milliseconds patience,
                                 size_t max_size) {
    CURL* curl = connection_->curl;
    if (curl == nullptr) return make_error(ErrorKind::kIo, "cannot begin with libcurl");
    Answer answer{{}, max_size};
    char reason[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(patience.count()));
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &take);
    const CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK)
        return make_error(ErrorKind::kIo,
                          "get " + printable(url) + ": " +
                              (reason[0] != '\0' ? reason : curl_easy_strerror(code)));
    return std::move(answer.text);
}

} // namespace speedbump::experiment
