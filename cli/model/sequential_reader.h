// Reads a range of a ByteSource from front to back through one buffer of fixed size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "byte_source.h"

namespace stagehand::cli::model {

class SequentialReader {
public:
    // The range must lie inside the source.
    SequentialReader(ByteSource& source, std::uint64_t offset, std::uint64_t bytes)
        : source_(source),
          buffer_(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, buffer_bytes))),
          next_(offset),
          end_(offset + bytes) {}

    // The offset in the source of the next byte that is returned.
    std::uint64_t position() const { return next_ - static_cast<std::uint64_t>(stop_ - at_); }
    std::uint64_t remaining() const { return end_ - position(); }

    // Whether peek() and step() may be called; has_buffered() is true only if they may without reading first.
    bool more() { return at_ != stop_ || refill(); }
    bool has_buffered() const { return at_ != stop_; }
    char peek() const { return buffer_[at_]; }
    void step() { ++at_; }

    // `bytes` is at most remaining(), for both.
    void read(void* to, std::size_t bytes) {
        auto* out = static_cast<char*>(to);
        while (bytes > 0 && more()) {
            const std::size_t part = std::min(bytes, stop_ - at_);
            std::memcpy(out, buffer_.data() + at_, part);
            at_ += part;
            out += part;
            bytes -= part;
        }
    }
    void skip(std::uint64_t bytes) {
        const std::uint64_t buffered = stop_ - at_;
        if (bytes <= buffered) {
            at_ += static_cast<std::size_t>(bytes);
            return;
        }
        next_ += bytes - buffered;
        at_ = stop_ = 0;
    }

private:
    static constexpr std::size_t buffer_bytes = std::size_t{256} << 10;

    bool refill() {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(end_ - next_, buffer_.size()));
        if (bytes == 0) return false;
        source_.read(next_, {buffer_.data(), bytes});
        next_ += bytes;
        at_ = 0;
        stop_ = bytes;
        return true;
    }

    ByteSource& source_;
    std::vector<char> buffer_;
    std::size_t at_ = 0;  // buffer_[at_, stop_) is read ahead
    std::size_t stop_ = 0;
    std::uint64_t next_;  // the offset in the source of the byte behind the buffer
    std::uint64_t end_;
};

}  // namespace stagehand::cli::model
