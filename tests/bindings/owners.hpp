// Checks for the programs that test stagehand.hpp, and the registration of a model whose blocks lie one after the other
// in memory.
#ifndef TESTS_BINDINGS_OWNERS_HPP
#define TESTS_BINDINGS_OWNERS_HPP

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stagehand/stagehand.hpp>
#include <vector>

inline std::atomic<int> failed_checks{0};

inline void check_true(bool holds, const char* what, int line) {
    if (holds) return;
    std::fprintf(stderr, "line %d: this does not hold: %s\n", line, what);
    ++failed_checks;
}
#define CHECK(condition) check_true((condition), #condition, __LINE__)

// Returns the status that a call throws, or SH_OK if it does not throw.
template <class Function>
sh_status status_of(Function function) {
    try {
        function();
    } catch (const stagehand::Error& error) {
        CHECK(std::strstr(error.what(), sh_status_string(error.status())) != nullptr);
        return error.status();
    }
    return SH_OK;
}

// Descriptions of blocks that lie one after the other in memory, with their segments.
struct DescsInARow {
    DescsInARow(void* memory, std::size_t count, std::size_t bytes, std::uint32_t flags = 0)
        : segments(count, sh_segment(SH_SEGMENT_INIT)), descs(count, sh_block_desc(SH_BLOCK_DESC_INIT)) {
        for (std::size_t i = 0; i < count; ++i) {
            segments[i].kind = SH_SOURCE_POINTER;
            segments[i].pointer = static_cast<unsigned char*>(memory) + i * bytes;
            segments[i].bytes = descs[i].bytes = bytes;
            descs[i].flags = flags;
            descs[i].segments = &segments[i];
            descs[i].segment_count = 1;
        }
    }
    DescsInARow(const DescsInARow&) = delete;

    std::vector<sh_segment> segments;
    std::vector<sh_block_desc> descs;
};

// `count` blocks of `bytes` bytes each.
inline std::vector<sh_block> register_in_a_row(stagehand::Runtime& runtime, void* memory, std::size_t count,
                                               std::size_t bytes, std::uint32_t flags = 0) {
    return runtime.register_blocks(DescsInARow(memory, count, bytes, flags).descs);
}

#endif
