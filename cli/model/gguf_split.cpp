// The fixed end of a part's name: "-ddddd-of-ddddd.gguf".
#include "gguf.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "error.h"

namespace stagehand::cli::model {

namespace {

constexpr std::string_view pattern = "-ddddd-of-ddddd.gguf";
constexpr std::size_t number_at = 1;
constexpr std::size_t count_at = 10;
constexpr std::size_t digits = 5;

// The end of the name that matches the pattern; empty if the name does not match.
std::string_view part_suffix(std::string_view name) {
    if (name.size() < pattern.size()) return {};
    const std::string_view end = name.substr(name.size() - pattern.size());
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const bool fits =
            pattern[i] == 'd' ? std::isdigit(static_cast<unsigned char>(end[i])) != 0 : end[i] == pattern[i];
        if (!fits) return {};
    }
    return end;
}

std::string five_digits(std::uint64_t number) {
    std::string text = std::to_string(number);
    return std::string(digits - std::min(digits, text.size()), '0') + text;
}

}  // namespace

bool same_split(std::string_view a, std::string_view b) {
    const std::string_view end_a = part_suffix(a);
    const std::string_view end_b = part_suffix(b);
    return !end_a.empty() && !end_b.empty() && end_a.substr(count_at) == end_b.substr(count_at) &&
           a.substr(0, a.size() - end_a.size()) == b.substr(0, b.size() - end_b.size());
}

std::vector<std::string> split_parts(const std::string& path, const GgufSplit& split) {
    const std::string_view end = part_suffix(path);
    if (end.empty() || end.substr(count_at, digits) != five_digits(split.count) ||
        end.substr(number_at, digits) != five_digits(split.number + 1)) {
        throw ModelError(path, "metadata 'split.count'",
                         "says that this is part " + std::to_string(split.number) + " (from 0) of a model in " +
                             std::to_string(split.count) + " parts, but the file's name does not end in -" +
                             five_digits(split.number + 1) + "-of-" + five_digits(split.count) + ".gguf");
    }
    std::vector<std::string> parts;
    const std::string prefix = path.substr(0, path.size() - end.size());
    for (std::uint64_t i = 1; i <= split.count; ++i)
        parts.push_back(prefix + "-" + five_digits(i) + "-of-" + five_digits(split.count) + ".gguf");
    return parts;
}

}  // namespace stagehand::cli::model
