#include "memory_picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "chart.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr int text_rows = 5;
constexpr std::string_view memory_style =
    R"(.line0, .line1, .line2 { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line0 { stroke: #6b7280; }
.line1 { stroke: #d97706; }
.line2 { stroke: #2563eb; }
.target { stroke: #1f2430; stroke-width: 1.5; stroke-dasharray: 7 5; }
)";
constexpr std::string_view memory_dark_style = R"(
  .line0 { stroke: #9aa3b2; }
  .line1 { stroke: #f5b04c; }
  .line2 { stroke: #7aa8ff; }
  .target { stroke: #e8eaed; }
)";

std::uint64_t longest(const std::vector<MemoryLine>& lines) {
    std::uint64_t end = 1;
    for (const MemoryLine& line : lines) end = std::max(end, line.end_ns);
    return end;
}

std::uint64_t highest(const std::vector<MemoryLine>& lines) {
    std::uint64_t peak = 1;
    for (const MemoryLine& line : lines) peak = std::max(peak, line.peak_bytes());
    return peak;
}

// The most memory in each of `count` equal parts of `range_ns`. 0 after the end of the line.
std::vector<std::uint64_t> sampled(const MemoryLine& line, std::uint64_t range_ns, std::size_t count) {
    std::vector<std::uint64_t> most(count, 0);
    const double part_ns = static_cast<double>(range_ns) / static_cast<double>(count);
    const auto column = [&](std::uint64_t ns) {
        return std::min(count - 1, static_cast<std::size_t>(static_cast<double>(ns) / part_ns));
    };
    for (std::size_t i = 0; i < line.points.size(); ++i) {
        const std::uint64_t until = i + 1 < line.points.size() ? line.points[i + 1].ns : line.end_ns;
        const std::size_t last = column(std::max(line.points[i].ns, until > 0 ? until - 1 : 0));
        for (std::size_t at = column(line.points[i].ns); at <= last; ++at)
            most[at] = std::max(most[at], line.points[i].bytes);
    }
    return most;
}

// A round number of bytes of which about four make `peak`.
double byte_step(double peak) {
    const double raw = peak / 4;
    const double unit = std::exp2(std::floor(std::log2(raw)));
    return raw > 1.5 * unit ? 2 * unit : unit;
}

}  // namespace

std::uint64_t MemoryLine::peak_bytes() const {
    std::uint64_t peak = 0;
    for (const sh_memory_point& point : points) peak = std::max(peak, point.bytes);
    return peak;
}

std::string memory_text(const std::vector<MemoryLine>& lines, int columns) {
    const std::uint64_t end = longest(lines);
    const std::uint64_t peak = highest(lines);
    constexpr int label = 11;
    const auto count = static_cast<std::size_t>(std::clamp(columns - label, 20, 100));
    std::string text;
    for (const MemoryLine& line : lines) {
        text += fmt::format("{}: {} at most, {}\n", line.name, model::format_bytes(line.peak_bytes()),
                            time_text(static_cast<double>(line.end_ns) / 1e6));
        const std::vector<std::uint64_t> bars = sampled(line, end, count);
        for (int row = text_rows; row > 0; --row) {
            const double level = static_cast<double>(peak) * (row - 0.5) / text_rows;
            std::string cells;
            for (const std::uint64_t bar : bars) cells += static_cast<double>(bar) >= level ? "█" : " ";
            const std::string mark = row == text_rows ? model::format_bytes(peak)
                                     : row == 1       ? std::string("0 B")
                                                      : std::string();
            std::string row_text = fmt::format("{:>{}} {}", mark, label - 1, cells);
            row_text.erase(row_text.find_last_not_of(' ') + 1);
            text += row_text + "\n";
        }
    }
    return text;
}

std::string memory_picture(const std::vector<MemoryLine>& lines, const std::string& title, const std::string& subtitle,
                           std::uint64_t target_bytes) {
    const auto end = static_cast<double>(longest(lines));
    const double peak = static_cast<double>(std::max(highest(lines), target_bytes)) * 1.05;
    Chart chart(480, 64, {end, peak}, memory_style, memory_dark_style, title + ": memory over a training step", title,
                subtitle);
    for (double bytes = 0; bytes <= peak; bytes += byte_step(peak))
        chart.row(bytes, model::format_bytes(static_cast<std::uint64_t>(bytes)));
    for (int tick = 0; tick <= 4; ++tick)
        chart.text({chart.x(end * tick / 4), chart.base() + 21}, "tick", time_text(end * tick / 4 / 1e6));
    if (target_bytes > 0) chart.level(static_cast<double>(target_bytes), "target");
    constexpr std::array<std::string_view, 3> classes{"line0", "line1", "line2"};
    std::vector<ChartEntry> entries;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        entries.push_back({classes[i % classes.size()], lines[i].name});
        std::vector<Point> points;
        for (const sh_memory_point& point : lines[i].points) {
            const Point next = chart.at({static_cast<double>(point.ns), static_cast<double>(point.bytes)});
            if (!points.empty()) points.push_back({next.x, points.back().y});
            points.push_back(next);
        }
        if (!points.empty()) points.push_back({chart.x(static_cast<double>(lines[i].end_ns)), points.back().y});
        chart.shape("polyline", points, entries.back().style_class);
    }
    chart.legend(entries);
    return chart.finish();
}

}  // namespace stagehand::cli
