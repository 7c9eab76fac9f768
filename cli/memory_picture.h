// The memory over a training step, as text and as SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

namespace stagehand::cli {

// One way to make the step.
struct MemoryLine {
    std::string name;
    std::vector<sh_memory_point> points;  // by time
    std::uint64_t forward_end_ns = 0;     // 0: not told
    std::uint64_t end_ns = 0;

    std::uint64_t peak_bytes() const;
};

// A bar chart for each line, all of them to one scale: `columns` wide.
std::string memory_text(const std::vector<MemoryLine>& lines, int columns);

// `target_bytes` 0: no target.
std::string memory_picture(const std::vector<MemoryLine>& lines, const std::string& title, const std::string& subtitle,
                           std::uint64_t target_bytes);

}  // namespace stagehand::cli
