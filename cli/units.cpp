#include "units.h"

#include <fmt/format.h>

#include "model/quantity.h"

namespace stagehand::cli {

std::string time_text(double ms) { return ms >= 1e-3 ? model::format_duration(ms * 1e6) : "0 ms"; }

std::string share_text(double part, double whole) {
    return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

std::string ratio_text(double value, double base) { return base > 0 ? fmt::format("{:.3f} ×", value / base) : "-"; }

bool is_below(double value, double base) { return base > 0 && value < 0.9995 * base; }

std::string count_text(std::uint64_t count) {
    std::string text = std::to_string(count);
    // Three digits at a time from the end.
    for (std::size_t digits = text.size(); digits > 3; digits -= 3) text.insert(digits - 3, 1, ',');
    return text;
}

std::string counted(std::uint64_t count, const char* singular) {
    return fmt::format("{} {}{}", count_text(count), singular, count == 1 ? "" : "s");
}

}  // namespace stagehand::cli
