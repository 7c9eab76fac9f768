// Sizes, shares and rates as people write and read them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stagehand::cli::model {

// The text is no quantity. what() quotes it and says why.
class QuantityError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// A number of bytes, or a share of a total that is known later.
class Quantity {
public:
    bool is_share() const { return is_share_; }

    // In bytes; a share is of `total_bytes`, rounded down. Throws QuantityError beyond 64 bits.
    std::uint64_t resolve(std::uint64_t total_bytes) const;

private:
    friend Quantity parse_quantity(std::string_view text);
    Quantity(std::uint64_t value, bool is_share) : value_(value), is_share_(is_share) {}

    std::uint64_t value_;  // bytes, or the share in units of 10^-11
    bool is_share_;
};

// "1048576", "512MiB", "2GB", "1.5 GiB", "25%": a decimal number, at most nine digits after its point, then
// nothing, B, kB to EB (powers of 1000), KiB to EiB (powers of 1024), in any case, or %. A fraction of a byte
// is dropped. K, M, G and T alone are refused, since they mean either. Throws QuantityError.
Quantity parse_quantity(std::string_view text);

// The same without shares.
std::uint64_t parse_bytes(std::string_view text);

// Bytes per second: as parse_bytes, with or without "/s" at its end; zero is refused. "10Gbit/s" is in bits; a small b, "10Gb/s", which
// is read as either, is refused.
std::uint64_t parse_rate(std::string_view text);

// "640 B", "1.46 GiB", "22.7 MiB", "416 MiB": three significant digits, powers of 1024.
std::string format_bytes(std::uint64_t bytes);

// "25.3 GB/s": three significant digits, powers of 1000. Not a number and negative give "-".
std::string format_rate(double bytes_per_second);

// "640 ns", "12.3 us", "4.56 ms", "1.23 s", "2 min 05 s", "3 h 07 min". Not a number and negative give "-".
std::string format_duration(double nanoseconds);

}  // namespace stagehand::cli::model
