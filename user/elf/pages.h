// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace speedbump::elf {

// Memory that reads as zeros and of which only the pages that were written to take room.
class ZeroPages {
  public:
    ZeroPages() = default;
    // None (nullptr as data()) where there is no address space for it.
    explicit ZeroPages(size_t size) {
        void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED) return;
        data_ = data;
        size_ = size;
    }
    ZeroPages(ZeroPages&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    ZeroPages& operator=(ZeroPages&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~ZeroPages() {
        if (data_ != nullptr) ::munmap(data_, size_);
    }

    // Where writes are few and far between: else each may take a huge page.
    void stay_small() { ::madvise(data_, size_, MADV_NOHUGEPAGE); }
    void* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

} // namespace speedbump::elf
