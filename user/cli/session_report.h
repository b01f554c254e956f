// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "cli/output.h"
#include "lifecycle/watch.h"
#include "report/json.h"

namespace speedbump::cli {

// What `attach` and `run` ask of a session's life.
lifecycle::WatchRequest watch_request(const SessionArguments& arguments);

// Reports a session of `attach` or `run` as its options say: tables or JSON, to stdout or a file.
class SessionReport : public lifecycle::WatchReporter {
  public:
    SessionReport(const SessionArguments& arguments, std::string command)
        : arguments_(arguments), command_(std::move(command)) {}

    Result<void> open() override;
    void warn(const std::string& text) override;
    void matched(const session::Snapshot& snapshot, const targets::TargetsFile& file) override;
    bool wants_samples() const override;
    void sample(const session::Snapshot& before, const session::Snapshot& now,
                const targets::TargetsFile& file) override;
    std::string status(const session::Snapshot& snapshot,
                       const targets::TargetsFile& file) const override;
    void final(const session::Snapshot& snapshot, const targets::TargetsFile& file,
               const std::string& reason) override;
    Result<void> finish() override;

  private:
    const SessionArguments& arguments_;
    std::string command_;
    std::optional<Output> output_;
    report::Context context_; // from matched() on
};

} // namespace speedbump::cli
