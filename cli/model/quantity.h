// Sizes, shares and speeds as people write and read them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stagehand::cli::model {

// The text is not a quantity. what() quotes the text and gives the reason.
class QuantityError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// A number of bytes, or a share of a total that becomes known later.
class Quantity {
public:
    bool is_share() const { return is_share_; }

    // The number of bytes. A share is taken of `total_bytes` and rounded down. Throws QuantityError if the result does
    // not fit in 64 bits.
    std::uint64_t resolve(std::uint64_t total_bytes) const;

private:
    friend Quantity parse_quantity(std::string_view text);
    Quantity(std::uint64_t value, bool is_share) : value_(value), is_share_(is_share) {}

    std::uint64_t value_;  // bytes, or the share in units of 10^-11
    bool is_share_;
};

// Reads "1048576", "512MiB", "2GB", "1.5 GiB" or "25%": a decimal number with at most nine digits after its point, and
// a unit. The unit is nothing, B, kB to EB (powers of 1000), KiB to EiB (powers of 1024), or %. A fraction of a byte is
// dropped. Prefixes may be in any case, but the B must be a capital: a small b ("2Gb") is refused, because it may mean
// bits. K, M, G and T alone are refused, because they may mean powers of 1000 or of 1024. Throws QuantityError.
Quantity parse_quantity(std::string_view text);

// Reads the same, but refuses a share.
std::uint64_t parse_bytes(std::string_view text);

// Reads a speed in bytes per second, with or without "/s" at its end: the units of parse_bytes, and "bit" instead of
// "B" for bits ("10Gbit/s"). A small b ("10Gb/s") is refused. Less than one byte per second is refused.
std::uint64_t parse_rate(std::string_view text);

// "640 B", "1.46 GiB", "22.7 MiB", "416 MiB": three significant digits, powers of 1024.
std::string format_bytes(std::uint64_t bytes);

// "25.3 GB/s": three significant digits, powers of 1000. "-" for a negative value or a value that is not a number.
std::string format_rate(double bytes_per_second);

// "640 ns", "12.3 us", "4.56 ms", "1.23 s", "2 min 05 s", "3 h 07 min". "-" for a negative value or a value that is not
// a number.
std::string format_duration(double nanoseconds);

}  // namespace stagehand::cli::model
