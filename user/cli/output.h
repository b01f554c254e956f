// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "cli/options.h"
#include "report/json.h"
#include "report/table.h"
#include "util/fd.h"
#include "util/result.h"

namespace speedbump::cli {

// A file of results, by path. Opened before the work begins, so that it is known early that it can
// be written; what it held before stays until something is. One that was not there before goes
// again where nothing is.
class OutputFile {
  public:
    // An empty path: no file, and write() does nothing.
    static Result<OutputFile> open(const std::string& path);
    OutputFile() = default;
    OutputFile(OutputFile&&) noexcept = default;
    OutputFile& operator=(OutputFile&&) noexcept = default;
    ~OutputFile();

    bool is_open() const { return fd_.valid(); }
    int fd() const { return fd_.get(); }
    // All of it, once. On a full disk the file holds what it held before.
    Result<void> write(std::string_view text);
    // Piece by piece, each as it comes.
    Result<void> append(std::string_view text);

  private:
    Result<void> failed(int error_number) const;

    std::string path_;
    Fd fd_;
    bool is_new_ = false;   // and nothing is in it that should stay
    bool is_begun_ = false; // by append()
};

// Where results go: stdout or the file of -o. On a terminal it can hold a table that is drawn over.
class Output {
  public:
    static Result<Output> open(const OutputArguments& arguments);

    const OutputArguments& arguments() const { return arguments_; }
    // Whether a table may be redrawn in place.
    bool animated() const;
    // Colours and the terminal's size now.
    report::Style style() const;

    // False where a write would wait now for whoever reads: a pager, a terminal that was stopped.
    bool takes_more() const;
    // Appends text; after a failure everything else is dropped and finish() tells.
    void write(std::string_view text);
    // A JSON document on a line of its own.
    void write_line(std::string_view text);
    // What happens now, where that can be drawn over.
    void say(std::string_view text);
    // Draws over what the last redraw() drew.
    void redraw(const std::string& text);
    // Takes the redrawn table away, so that something else can be written.
    void erase();
    // kIo when something could not be written.
    Result<void> finish();

  private:
    OutputArguments arguments_;
    OutputFile file_; // none: stdout
    Result<void> written_;
    size_t drawn_lines_ = 0;

    int fd() const { return file_.is_open() ? file_.fd() : 1; }
};

// Host, kernel and version for a JSON document.
report::Context make_context(const std::string& command);

// The same in a document that has fields of its own for them.
template <typename Document>
void set_origin(Document& document) {
    report::Context context = make_context("experiment");
    document.version = std::move(context.version);
    document.host = std::move(context.host);
    document.kernel = std::move(context.kernel);
    document.machine = std::move(context.machine);
}

} // namespace speedbump::cli
