#include "memory_picture.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/quantity.h"
#include "svg.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr int text_rows = 5;
constexpr double memory_width = 880;
constexpr double memory_height = 480;
constexpr double memory_left = 76;
constexpr double memory_right = 36;
constexpr double memory_top = 104;
constexpr double memory_bottom = 64;

constexpr std::string_view memory_style = R"(
svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.paper { fill: #ffffff; }
.title { fill: #1f2430; font-size: 19px; font-weight: 600; }
.subtitle, .tick, .tick-y, .legend { fill: #6b7280; font-size: 13px; }
.tick { text-anchor: middle; }
.tick-y { text-anchor: end; }
.grid { stroke: #e6e8ec; stroke-width: 1; }
.axis { stroke: #6b7280; stroke-width: 1; }
.line0, .line1, .line2 { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line0 { stroke: #6b7280; }
.line1 { stroke: #d97706; }
.line2 { stroke: #2563eb; }
.target { stroke: #1f2430; stroke-width: 1.5; stroke-dasharray: 7 5; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14171d; }
  .title { fill: #e8eaed; }
  .subtitle, .tick, .tick-y, .legend { fill: #9aa3b2; }
  .grid { stroke: #2a303a; }
  .axis, .line0 { stroke: #9aa3b2; }
  .line1 { stroke: #f5b04c; }
  .line2 { stroke: #7aa8ff; }
  .target { stroke: #e8eaed; }
}
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
    const auto x = [&](std::uint64_t ns) {
        return memory_left + (memory_width - memory_left - memory_right) * static_cast<double>(ns) / end;
    };
    const auto y = [&](double bytes) {
        return memory_height - memory_bottom - (memory_height - memory_top - memory_bottom) * bytes / peak;
    };
    SvgPicture picture(memory_width, memory_height, title + ": memory over a training step", memory_style);
    picture.rectangle({0, 0}, memory_width, memory_height, "paper");
    picture.text({20, 34}, "title", title);
    picture.text({20, 56}, "subtitle", subtitle);
    for (double bytes = 0; bytes <= peak; bytes += byte_step(peak)) {
        picture.line({memory_left, y(bytes)}, {memory_width - memory_right, y(bytes)}, bytes == 0 ? "axis" : "grid");
        picture.text({memory_left - 8, y(bytes) + 4.5}, "tick-y",
                     model::format_bytes(static_cast<std::uint64_t>(bytes)));
    }
    for (int tick = 0; tick <= 4; ++tick) {
        const auto ns = static_cast<std::uint64_t>(end * tick / 4);
        picture.text({x(ns), memory_height - memory_bottom + 21}, "tick", time_text(static_cast<double>(ns) / 1e6));
    }
    if (target_bytes > 0) {
        picture.line({memory_left, y(static_cast<double>(target_bytes))},
                     {memory_width - memory_right, y(static_cast<double>(target_bytes))}, "target");
    }
    double legend = memory_left;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const std::string style_class = fmt::format("line{}", i % 3);
        std::vector<Point> points;
        for (const sh_memory_point& point : lines[i].points) {
            if (!points.empty()) points.push_back({x(point.ns), points.back().y});
            points.push_back({x(point.ns), y(static_cast<double>(point.bytes))});
        }
        if (!points.empty()) points.push_back({x(lines[i].end_ns), points.back().y});
        picture.polyline(points, style_class);
        picture.line({legend, memory_top - 24}, {legend + 26, memory_top - 24}, style_class);
        picture.text({legend + 32, memory_top - 19.5}, "legend", lines[i].name);
        legend += 48 + 8 * static_cast<double>(lines[i].name.size());
    }
    return picture.finish();
}

}  // namespace stagehand::cli
