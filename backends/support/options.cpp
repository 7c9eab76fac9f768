#include "support/options.h"

#include <algorithm>
#include <cinttypes>
#include <string_view>
#include <type_traits>

#include "base/limits.h"
#include "base/number.h"

#include "support/last_error.h"

namespace stagehand::support {
namespace {

struct Unit {
    std::string_view suffix;
    uint64_t factor;
};

constexpr Unit kByteUnits[] = {
    {"", 1},
    {"B", 1},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000ull},
    {"TB", 1000000000000ull},
};
constexpr Unit kTimeUnits[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000ull}};

std::string_view trimmed(std::string_view text) {
    const auto space = [](char c) { return c == ' ' || c == '\t'; };
    while (!text.empty() && space(text.front())) text.remove_prefix(1);
    while (!text.empty() && space(text.back())) text.remove_suffix(1);
    return text;
}

// Whole numbers are exact over all 64 bits. Other numbers go through a double.
bool scaled(std::string_view digits, uint64_t factor, uint64_t* value) {
    if (const auto whole = read_number<uint64_t>(digits)) return !__builtin_mul_overflow(*whole, factor, value);
    const auto real = read_number<double>(digits);
    const double product = real ? *real * static_cast<double>(factor) : -1;
    if (!(product >= 0 && product < 18446744073709551616.0)) return false;
    *value = static_cast<uint64_t>(product);
    return true;
}

// Returns the length of the number, where its unit begins.
size_t number_length(std::string_view text) {
    if (text.empty() || text.front() < '0' || text.front() > '9') return 0;
    std::string_view rest = text;
    return take_number<double>(&rest) ? text.size() - rest.size() : 0;
}

template <size_t Count>
bool quantity(std::string_view text, const Unit (&units)[Count], uint64_t plain_factor, uint64_t* value) {
    const size_t length = number_length(text);
    if (!length) return false;
    const std::string_view digits = text.substr(0, length), suffix = trimmed(text.substr(length));
    if (suffix.empty()) return scaled(digits, plain_factor, value);
    for (const Unit& unit : units) {
        if (unit.suffix == suffix) return scaled(digits, unit.factor, value);
    }
    return false;
}

sh_status bad_value(const char* key, const std::string& value, const char* wanted) {
    return fail(SH_ERROR_INVALID_ARGUMENT, "option %s: '%s' is not %s", key, value.c_str(), wanted);
}

}  // namespace

sh_status Options::parse(const char* text, Options* out) {
    Options result;
    std::string_view left = text ? text : "";
    while (!left.empty()) {
        const size_t end = left.find(';');
        const std::string_view entry = trimmed(left.substr(0, end));
        left = end == std::string_view::npos ? std::string_view() : left.substr(end + 1);
        if (entry.empty()) continue;
        const size_t equals = entry.find('=');
        const std::string key(trimmed(entry.substr(0, equals)));
        if (equals == std::string_view::npos || key.empty()) {
            return fail(SH_ERROR_INVALID_ARGUMENT, "options: '%s' is not key=value", std::string(entry).c_str());
        }
        if (result.has(key.c_str())) return fail(SH_ERROR_INVALID_ARGUMENT, "option %s is given twice", key.c_str());
        result.entries_.emplace_back(key, trimmed(entry.substr(equals + 1)));
    }
    *out = std::move(result);
    return SH_OK;
}

bool Options::has(const char* key) const {
    return std::ranges::any_of(entries_, [&](const auto& entry) { return entry.first == key; });
}

bool Options::take(const char* key, std::string* value) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (entry->first != key) continue;
        *value = std::move(entry->second);
        entries_.erase(entry);
        return true;
    }
    return false;
}

sh_status Options::take_bytes(const char* key, uint64_t* value) {
    std::string text;
    if (!take(key, &text) || quantity(text, kByteUnits, 1, value)) return SH_OK;
    return bad_value(key, text, "a number of bytes (4096, 64KiB, 1.5GiB, 2GB)");
}

sh_status Options::take_bytes(const char* key, const char* other_name, uint64_t* value) {
    if (has(key) && has(other_name))
        return fail(SH_ERROR_INVALID_ARGUMENT, "options %s and %s are the same: give one of them", key, other_name);
    return take_bytes(has(key) ? key : other_name, value);
}

sh_status Options::take_rate(const char* key, uint64_t* bytes_per_second) {
    std::string text;
    if (!take(key, &text)) return SH_OK;
    std::string_view amount = text;
    if (amount.size() > 2 && amount.substr(amount.size() - 2) == "/s") amount.remove_suffix(2);
    uint64_t rate = 0;
    if (!quantity(amount, kByteUnits, 1, &rate))
        return bad_value(key, text, "a number of bytes per second (55.5e9, 12GB/s)");
    if (rate && !limits::is_link(rate)) return bad_value(key, text, "0, nor from 1MB/s to 1000TB/s");
    *bytes_per_second = rate;
    return SH_OK;
}

sh_status Options::take_duration(const char* key, uint64_t plain_unit_ns, uint64_t* value_ns) {
    std::string text;
    if (!take(key, &text) || quantity(text, kTimeUnits, plain_unit_ns, value_ns)) return SH_OK;
    return bad_value(key, text, "a duration (500ns, 20us, 1.5ms)");
}

sh_status Options::take_number(const char* key, uint64_t* value) {
    std::string text;
    if (!take(key, &text)) return SH_OK;
    const auto number = read_number<std::remove_pointer_t<decltype(value)>>(text);
    *value = number.value_or(*value);
    return number ? SH_OK : bad_value(key, text, "a whole number");
}

sh_status Options::take_signed(const char* key, int64_t* value) {
    std::string text;
    if (!take(key, &text)) return SH_OK;
    const auto number = read_number<std::remove_pointer_t<decltype(value)>>(text);
    *value = number.value_or(*value);
    return number ? SH_OK : bad_value(key, text, "a whole number");
}

sh_status Options::take_real(const char* key, double least, double most, double* value) {
    std::string text;
    if (!take(key, &text)) return SH_OK;
    const auto real = read_number<double>(text);
    if (real && *real >= least && *real <= most) {
        *value = *real;
        return SH_OK;
    }
    return fail(SH_ERROR_INVALID_ARGUMENT, "option %s: '%s' is not a number from %g to %g", key, text.c_str(), least,
                most);
}

sh_status Options::take_flag(const char* key, bool* value) {
    std::string text;
    if (!take(key, &text)) return SH_OK;
    if (text != "0" && text != "1") return bad_value(key, text, "0 or 1");
    *value = text == "1";
    return SH_OK;
}

void Options::take_text(const char* key, std::string* value) { take(key, value); }

sh_status Options::finish(const char* known_keys) const {
    if (entries_.empty()) return SH_OK;
    return fail(SH_ERROR_INVALID_ARGUMENT, "option %s is unknown; known options: %s", entries_.front().first.c_str(),
                known_keys);
}

std::string Options::rest() const {
    std::string text;
    for (const auto& [key, value] : entries_) {
        if (!text.empty()) text += ';';
        text += key + '=' + value;
    }
    return text;
}

sh_status check_latency(uint64_t latency_ns) {
    if (latency_ns <= limits::kLongestLatency) return SH_OK;
    return fail(SH_ERROR_INVALID_ARGUMENT, "option latency: %" PRIu64 " ns is more than a minute", latency_ns);
}

}  // namespace stagehand::support
