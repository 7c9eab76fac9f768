// Memory for a model's many small names and shapes: a few large chunks instead of millions of allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace stagehand::cli::model {

// The memory lives as long as the arena, and keeps its address when the arena is moved.
class Arena {
public:
    std::string_view copy(std::string_view text) {
        if (text.empty()) return {};
        auto* to = static_cast<char*>(take(text.size(), 1));
        std::memcpy(to, text.data(), text.size());
        return {to, text.size()};
    }

    std::span<const std::uint64_t> copy(std::span<const std::uint64_t> values) {
        if (values.empty()) return {};
        auto* to = static_cast<std::uint64_t*>(take(values.size_bytes(), alignof(std::uint64_t)));
        std::memcpy(to, values.data(), values.size_bytes());
        return {to, values.size()};
    }

private:
    static constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

    void* take(std::size_t bytes, std::size_t alignment) {
        // An allocation of more than a quarter of a chunk gets its own chunk, so that little of the open chunk is lost.
        if (bytes > chunk_bytes / 4) {
            large_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
            return large_.back().get();
        }
        used_ = (used_ + alignment - 1) / alignment * alignment;
        if (chunks_.empty() || used_ + bytes > chunk_bytes) {
            chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(chunk_bytes));
            used_ = 0;
        }
        void* result = chunks_.back().get() + used_;
        used_ += bytes;
        return result;
    }

    std::vector<std::unique_ptr<std::byte[]>> chunks_;
    std::vector<std::unique_ptr<std::byte[]>> large_;
    std::size_t used_ = 0;
};

}  // namespace stagehand::cli::model
