// Exact decimal arithmetic in 128 bits: a budget of "0.3GB" is 300,000,000 bytes, not one less.
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

struct Unit {
    std::string_view name;
    std::uint64_t bytes;
};

constexpr std::array units{
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"kb", 1'000},
    Unit{"mb", 1'000'000},
    Unit{"gb", 1'000'000'000},
    Unit{"tb", 1'000'000'000'000},
    Unit{"pb", 1'000'000'000'000'000},
    Unit{"eb", 1'000'000'000'000'000'000},
    Unit{"kib", std::uint64_t{1} << 10},
    Unit{"mib", std::uint64_t{1} << 20},
    Unit{"gib", std::uint64_t{1} << 30},
    Unit{"tib", std::uint64_t{1} << 40},
    Unit{"pib", std::uint64_t{1} << 50},
    Unit{"eib", std::uint64_t{1} << 60},
};

[[noreturn]] void fail(std::string_view text, const std::string& why) {
    throw QuantityError(in_quotes(text) + " " + why);
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && text.front() == ' ') {
        text.remove_prefix(1);
    }
    while (!text.empty() && text.back() == ' ') {
        text.remove_suffix(1);
    }
    return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Decimal {
    Wide parts = 0;  // of 1 / decimals
    bool has_fraction = false;
};

// Takes a number off the front of `rest`; `text` is the whole, for messages.
Decimal take_decimal(std::string_view text, std::string_view& rest) {
    if (!rest.empty() && rest.front() == '-') {
        fail(text, "is negative");
    }
    Decimal number;
    std::size_t digits = 0;
    for (; !rest.empty() && is_digit(rest.front()); rest.remove_prefix(1), ++digits) {
        number.parts = number.parts * 10 + static_cast<unsigned>(rest.front() - '0');
        if (number.parts > limit) {
            fail(text, "does not fit in 64 bits");
        }
    }
    number.parts *= decimals;
    if (!rest.empty() && rest.front() == '.') {
        rest.remove_prefix(1);
        std::uint64_t place = decimals;
        for (; !rest.empty() && is_digit(rest.front()); rest.remove_prefix(1), ++digits) {
            place /= 10;
            if (place == 0) {
                fail(text, "has more than nine digits after its point");
            }
            number.parts += place * static_cast<unsigned>(rest.front() - '0');
            number.has_fraction = true;
        }
    }
    if (digits == 0) {
        fail(text, "does not begin with a number");
    }
    return number;
}

std::uint64_t unit_bytes(std::string_view text, std::string_view name) {
    std::string lower;
    for (const char c : name) {
        lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    for (const Unit& unit : units) {
        if (lower == unit.name) {
            return unit.bytes;
        }
    }
    if (lower.size() == 1 && std::string_view("kmgtpe").find(lower[0]) != std::string_view::npos) {
        const auto letter = static_cast<char>(std::toupper(static_cast<unsigned char>(lower[0])));
        fail(text, std::string("leaves open whether ") + letter + "B (powers of 1000) or " + letter +
                       "iB (powers of 1024) is meant");
    }
    fail(text,
         "has the unknown unit " + in_quotes(name) + "; known are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB");
}

// Three significant digits; whole numbers from 100 on.
std::string three_digits(double value) {
    std::array<char, 32> text{};
    const int places = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    std::snprintf(text.data(), text.size(), "%.*f", places, value);
    return text.data();
}

// `value` in the largest of the steps that leaves at least 1 after rounding.
std::string scaled(double value, double base, std::span<const char* const> names) {
    std::size_t step = 0;
    while (step + 1 < names.size() && std::round(value) >= base) {
        value /= base;
        ++step;
    }
    return (step == 0 ? std::to_string(static_cast<std::uint64_t>(std::round(value))) : three_digits(value)) +
           " " + names[step];
}

}  // namespace

std::uint64_t Quantity::resolve(std::uint64_t total_bytes) const {
    if (!is_share_) {
        return value_;
    }
    const Wide bytes = static_cast<Wide>(total_bytes) * value_ / shares;
    if (bytes > limit) {
        throw QuantityError("the share of " + std::to_string(total_bytes) + " bytes does not fit in 64 bits");
    }
    return static_cast<std::uint64_t>(bytes);
}

Quantity parse_quantity(std::string_view text) {
    std::string_view rest = trimmed(text);
    if (rest.empty()) {
        fail(text, "is empty; a size such as 512MiB is wanted");
    }
    const Decimal number = take_decimal(text, rest);
    rest = trimmed(rest);
    if (rest == "%") {
        if (number.parts > limit) {
            fail(text, "is too large a share");
        }
        return Quantity(static_cast<std::uint64_t>(number.parts), true);
    }
    const std::uint64_t unit = unit_bytes(text, rest);
    if (unit == 1 && number.has_fraction) {
        fail(text, "is no whole number of bytes");
    }
    // Number and unit are each below 2^64, but parts of a number are not.
    const Wide whole = number.parts / decimals * unit;
    const Wide bytes = whole + number.parts % decimals * unit / decimals;
    if (bytes > limit) {
        fail(text, "does not fit in 64 bits");
    }
    return Quantity(static_cast<std::uint64_t>(bytes), false);
}

std::uint64_t parse_bytes(std::string_view text) {
    const Quantity quantity = parse_quantity(text);
    if (quantity.is_share()) {
        fail(text, "is a share, where a number of bytes is wanted");
    }
    return quantity.resolve(0);
}

std::uint64_t parse_rate(std::string_view text) {
    std::string size(trimmed(text));
    if (size.ends_with("/s")) {
        size = trimmed(std::string_view(size).substr(0, size.size() - 2));
    }
    // Links are told in bits as well, and one letter's case is the difference.
    const bool bits = size.ends_with("bit");
    if (bits) {
        size.replace(size.size() - 3, 3, "B");
    } else if (size.ends_with('b')) {
        fail(text, "leaves open whether bits or bytes are meant; write GB/s for bytes, Gbit/s for bits");
    }
    const std::uint64_t rate = parse_bytes(size) / (bits ? 8 : 1);
    if (rate == 0) {
        fail(text, "is zero; a rate such as 25GB/s is wanted");
    }
    return rate;
}

std::string format_bytes(std::uint64_t bytes) {
    static constexpr std::array names{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return scaled(static_cast<double>(bytes), 1024, names);
}

std::string format_rate(double bytes_per_second) {
    static constexpr std::array names{"B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"};
    return bytes_per_second >= 0 && std::isfinite(bytes_per_second) ? scaled(bytes_per_second, 1000, names)
                                                                    : "-";
}

std::string format_duration(double nanoseconds) {
    if (!(nanoseconds >= 0) || !std::isfinite(nanoseconds)) {
        return "-";
    }
    const double seconds = std::round(nanoseconds / 1e9);
    if (seconds < 60 || seconds > 1e15) {
        static constexpr std::array names{"ns", "us", "ms", "s"};
        return scaled(nanoseconds, 1000, names);
    }
    const auto whole = static_cast<std::uint64_t>(seconds);
    const auto pair = [](std::uint64_t large, const char* large_name, std::uint64_t small,
                         const char* small_name) {
        return std::to_string(large) + " " + large_name + (small < 10 ? " 0" : " ") + std::to_string(small) +
               " " + small_name;
    };
    return whole < 3600 ? pair(whole / 60, "min", whole % 60, "s")
                        : pair(whole / 3600, "h", whole % 3600 / 60, "min");
}

}  // namespace stagehand::cli::model
