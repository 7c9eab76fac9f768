// Decimal numbers are computed exactly, in 128 bits: a budget of "0.3GB" is 300,000,000 bytes, not 299,999,999.
#include "quantity.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>

#include "text.h"

namespace stagehand::cli::model {

namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t decimals = 1'000'000'000;  // a Decimal counts in these parts
constexpr std::uint64_t shares = 100 * decimals;

// The bytes of a unit in lower case; 0 if it is none.
std::uint64_t bytes_of(std::string_view unit) {
    if (unit.empty() || unit == "b") return 1;
    const std::size_t power = std::string_view("kmgtpe").find(unit[0]);
    const std::string_view rest = unit.substr(1);
    if (power == std::string_view::npos || (rest != "b" && rest != "ib")) return 0;
    std::uint64_t bytes = 1;
    for (std::size_t i = 0; i <= power; ++i) bytes *= rest == "b" ? 1000 : 1024;
    return bytes;
}

[[noreturn]] void fail(std::string_view text, const std::string& why) {
    throw QuantityError(in_quotes(text) + " " + why);
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Decimal {
    Wide parts = 0;  // of 1 / decimals
    bool has_fraction = false;
};

// Takes a number off the front of `rest`; `text` is the whole, for messages.
Decimal take_decimal(std::string_view text, std::string_view& rest) {
    if (!rest.empty() && rest.front() == '-') fail(text, "is negative");
    Decimal number;
    std::size_t digits = 0;
    for (; !rest.empty() && is_digit(rest.front()); rest.remove_prefix(1), ++digits) {
        number.parts = number.parts * 10 + static_cast<unsigned>(rest.front() - '0');
        if (number.parts > limit) fail(text, "does not fit in 64 bits");
    }
    number.parts *= decimals;
    if (!rest.empty() && rest.front() == '.') {
        rest.remove_prefix(1);
        std::uint64_t place = decimals;
        for (; !rest.empty() && is_digit(rest.front()); rest.remove_prefix(1), ++digits) {
            place /= 10;
            if (place == 0) fail(text, "has more than nine digits after its point");
            number.parts += place * static_cast<unsigned>(rest.front() - '0');
            number.has_fraction = true;
        }
    }
    if (digits == 0) fail(text, "does not begin with a number");
    return number;
}

std::string lower(std::string_view text) {
    std::string result;
    for (const char c : text) result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
}

bool has_prefix_letter(std::string_view unit) {
    return !unit.empty() && std::string_view("kmgtpe").find(unit.front()) != std::string_view::npos;
}

// The usual spelling of a prefix that is given in lower case: "k", "M", "Gi".
std::string prefix_text(std::string_view prefix) {
    std::string result(prefix);
    if (!result.empty() && result != "k")
        result[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(result[0])));
    return result;
}

// What a number with a unit is: the two kinds differ in the unit that a message suggests.
enum class Kind { size, rate };

// A small b means bits to some and bytes to others, and the two differ by a factor of eight.
[[noreturn]] void fail_small_b(std::string_view text, std::string_view prefix, Kind kind) {
    const std::string written = prefix_text(prefix);
    fail(text, kind == Kind::rate ? "does not say whether bits or bytes are meant: write " + written +
                                        "B/s for bytes per second, or " + written + "bit/s for bits per second"
                                  : "does not say whether bits or bytes are meant: write " + written +
                                        "B for bytes, because a size is not given in bits (" + written + "bit)");
}

std::uint64_t unit_bytes(std::string_view text, std::string_view name, Kind kind) {
    const std::string unit = lower(name);
    if (const std::uint64_t bytes = bytes_of(unit); bytes != 0) {
        if (name.ends_with('b')) fail_small_b(text, std::string_view(unit).substr(0, unit.size() - 1), kind);
        return bytes;
    }
    if (unit.size() == 1 && has_prefix_letter(unit)) {
        const std::string letter = prefix_text(unit);
        const std::string end = kind == Kind::rate ? "/s" : "";
        fail(text, "does not name its unit: write " + letter + "B" + end + " (powers of 1000) or " +
                       static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))) + "iB" + end +
                       " (powers of 1024)");
    }
    if (kind == Kind::size && unit.ends_with("bit"))
        fail(text, "is in bits, but a size is in bytes: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB");
    if (kind == Kind::size && (unit.ends_with("/s") || unit.ends_with("ps")))
        fail(text, "is a speed, but a size is required, such as 512MiB");
    if (kind == Kind::rate) {
        fail(text, "has the unknown unit " + in_quotes(name) +
                       "; a speed is in B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, kbit/s, Mbit/s or Gbit/s");
    }
    fail(text, "has the unknown unit " + in_quotes(name) + "; known are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB");
}

// The number in bytes. A fraction of a byte is dropped if the unit is larger than a byte.
std::uint64_t whole_bytes(std::string_view text, const Decimal& number, std::uint64_t unit) {
    if (unit == 1 && number.has_fraction) fail(text, "is not a whole number of bytes");
    // The number and the unit are each below 2^64, but the parts of the number are not.
    const Wide whole = number.parts / decimals * unit;
    const Wide bytes = whole + number.parts % decimals * unit / decimals;
    if (bytes > limit) fail(text, "does not fit in 64 bits");
    return static_cast<std::uint64_t>(bytes);
}

// Three significant digits; whole numbers from 100 on.
std::string three_digits(double value) {
    std::array<char, 32> text{};
    const int places = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    std::snprintf(text.data(), text.size(), "%.*f", places, value);
    return text.data();
}

// `value` in the largest unit of `names` in which it is at least 1 after rounding.
std::string scaled(double value, double base, std::span<const char* const> names) {
    std::size_t step = 0;
    while (step + 1 < names.size() && std::round(value) >= base) {
        value /= base;
        ++step;
    }
    return (step == 0 ? std::to_string(static_cast<std::uint64_t>(std::round(value))) : three_digits(value)) + " " +
           names[step];
}

}  // namespace

std::uint64_t Quantity::resolve(std::uint64_t total_bytes) const {
    if (!is_share_) return value_;
    const Wide bytes = static_cast<Wide>(total_bytes) * value_ / shares;
    if (bytes > limit)
        throw QuantityError("the share of " + std::to_string(total_bytes) + " bytes does not fit in 64 bits");
    return static_cast<std::uint64_t>(bytes);
}

Quantity parse_quantity(std::string_view text) {
    std::string_view rest = trimmed(text);
    if (rest.empty()) fail(text, "is empty; a size such as 512MiB is required");
    const Decimal number = take_decimal(text, rest);
    rest = trimmed(rest);
    if (rest == "%") {
        if (number.parts > limit) fail(text, "is too large a share");
        return Quantity(static_cast<std::uint64_t>(number.parts), true);
    }
    return Quantity(whole_bytes(text, number, unit_bytes(text, rest, Kind::size)), false);
}

std::uint64_t parse_bytes(std::string_view text) {
    const Quantity quantity = parse_quantity(text);
    if (quantity.is_share()) fail(text, "is a share, but a number of bytes is required, such as 512MiB");
    return quantity.resolve(0);
}

std::uint64_t parse_rate(std::string_view text) {
    std::string_view rest = trimmed(text);
    if (rest.empty()) fail(text, "is empty; a speed such as 25GB/s is required");
    const Decimal number = take_decimal(text, rest);
    std::string unit(trimmed(rest));
    if (unit.ends_with("/s")) unit = trimmed(std::string_view(unit).substr(0, unit.size() - 2));
    if (unit == "%") fail(text, "is a share, but a speed is required, such as 25GB/s");
    // Links are often specified in bits.
    const bool bits = unit.ends_with("bit");
    if (bits) unit.replace(unit.size() - 3, 3, "B");
    const std::uint64_t rate = whole_bytes(text, number, unit_bytes(text, unit, Kind::rate)) / (bits ? 8 : 1);
    if (rate == 0) fail(text, "is less than one byte per second; a speed such as 25GB/s is required");
    return rate;
}

std::string format_bytes(std::uint64_t bytes) {
    static constexpr std::array names{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return scaled(static_cast<double>(bytes), 1024, names);
}

std::string format_rate(double bytes_per_second) {
    static constexpr std::array names{"B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"};
    return bytes_per_second >= 0 && std::isfinite(bytes_per_second) ? scaled(bytes_per_second, 1000, names) : "-";
}

std::string format_duration(double nanoseconds) {
    if (!(nanoseconds >= 0) || !std::isfinite(nanoseconds)) return "-";
    const double seconds = std::round(nanoseconds / 1e9);
    if (seconds < 60 || seconds > 1e15) {
        static constexpr std::array names{"ns", "us", "ms", "s"};
        return scaled(nanoseconds, 1000, names);
    }
    const auto whole = static_cast<std::uint64_t>(seconds);
    const auto pair = [](std::uint64_t large, const char* large_name, std::uint64_t small, const char* small_name) {
        return std::to_string(large) + " " + large_name + (small < 10 ? " 0" : " ") + std::to_string(small) + " " +
               small_name;
    };
    return whole < 3600 ? pair(whole / 60, "min", whole % 60, "s") : pair(whole / 3600, "h", whole % 3600 / 60, "min");
}

}  // namespace stagehand::cli::model
