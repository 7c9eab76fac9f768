// Sizes, shares, rates and times as text.
#include "model/quantity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace stagehand::cli::model::test {

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();

std::string parse_error(const std::string& text) {
    try {
        parse_quantity(text);
    } catch (const QuantityError& error) {
        return error.what();
    }
    return "";
}

TEST(Quantity, ReadsBytes) {
    const std::pair<std::string, std::uint64_t> cases[] = {
        {"0", 0},
        {"1048576", mib},
        {"512MiB", 512 * mib},
        {"2GB", 2'000'000'000},
        {"1.5GiB", 1536 * mib},
        {"1.5 giB", 1536 * mib},
        {"2gB", 2'000'000'000},
        {"  64 kB ", 64'000},
        {"7B", 7},
        {".5KiB", 512},
        {"5.KiB", 5120},
        {"0.3GB", 300'000'000},
        {"1.000000001GB", 1'000'000'001},
        {"1.0005kB", 1000},
        {"3TiB", 3 * mib * mib},
        {"15EiB", 15 * (std::uint64_t{1} << 60)},
        {"18446744073709551615", largest},
    };
    for (const auto& [text, bytes] : cases) {
        const Quantity quantity = parse_quantity(text);
        EXPECT_FALSE(quantity.is_share()) << text;
        EXPECT_EQ(quantity.resolve(123), bytes) << text;
        EXPECT_EQ(parse_bytes(text), bytes) << text;
    }
}

TEST(Quantity, ReadsShares) {
    EXPECT_TRUE(parse_quantity("25%").is_share());
    EXPECT_EQ(parse_quantity("25%").resolve(1000), 250U);
    EXPECT_EQ(parse_quantity("25 %").resolve(7), 1U);
    EXPECT_EQ(parse_quantity("33.3%").resolve(1'000'000'000'000), 333'000'000'000U);
    EXPECT_EQ(parse_quantity("100%").resolve(largest), largest);
    EXPECT_EQ(parse_quantity("0%").resolve(largest), 0U);
    EXPECT_EQ(parse_quantity("150%").resolve(10), 15U);
    EXPECT_EQ(parse_quantity("0.000000001%").resolve(100'000'000'000), 1U);
    EXPECT_THROW(parse_quantity("101%").resolve(largest), QuantityError);
}

TEST(Quantity, SaysWhatIsWrong) {
    const std::pair<std::string, std::string> cases[] = {
        {"", "'' is empty"},
        {"   ", "is empty"},
        {"-1", "'-1' is negative"},
        {"-5%", "is negative"},
        {"MiB", "does not begin with a number"},
        {".", "does not begin with a number"},
        {"%", "does not begin with a number"},
        {"12 parsecs", "has the unknown unit 'parsecs'"},
        {"1.5", "is not a whole number of bytes"},
        {"0.5B", "is not a whole number of bytes"},
        {"512M", "does not name its unit: write MB (powers of 1000) or MiB (powers of 1024)"},
        {"1g", "does not name its unit: write GB"},
        {"1k", "write kB (powers of 1000) or KiB (powers of 1024)"},
        {"2Gb",
         "'2Gb' does not say whether bits or bytes are meant: write GB for bytes, because a size is not given "
         "in bits (Gbit)"},
        {"2gb", "write GB for bytes"},
        {"512mib", "write MiB for bytes"},
        {"512 Kib", "write KiB for bytes"},
        {"8kb", "write kB for bytes"},
        {"7b", "write B for bytes"},
        {"2Gbit", "is in bits, but a size is in bytes"},
        {"25GB/s", "is a speed, but a size is required"},
        {"1e9", "has the unknown unit 'e9'"},
        {"1,000", "has the unknown unit ',000'"},
        {"0x10", "has the unknown unit 'x10'"},
        {"1.0000000001GB", "more than nine digits"},
        {"18446744073709551616", "does not fit in 64 bits"},
        {"16EiB", "does not fit in 64 bits"},
        {"99999999999999999999999999999999999999999999GB", "does not fit in 64 bits"},
        {"99999999999999%", "is too large a share"},
        {"1MiB\x1b", "unknown unit 'MiB\\x1b'"},
    };
    for (const auto& [text, message] : cases) {
        EXPECT_NE(parse_error(text).find(message), std::string::npos) << text << " gave " << parse_error(text);
    }
    EXPECT_THROW(parse_bytes("25%"), QuantityError);
}

TEST(Quantity, ReadsRates) {
    EXPECT_EQ(parse_rate("25GB/s"), 25'000'000'000U);
    EXPECT_EQ(parse_rate("25 GB"), 25'000'000'000U);
    EXPECT_EQ(parse_rate("1MiB/s "), mib);
    EXPECT_EQ(parse_rate("10Gbit/s"), 1'250'000'000U);
    EXPECT_EQ(parse_rate("1.5 kbit"), 187U);
    EXPECT_EQ(parse_rate("8 Mibit /s"), mib);
    EXPECT_EQ(parse_rate("64bit/s"), 8U);
    EXPECT_EQ(parse_rate("7B/s"), 7U);
    EXPECT_EQ(parse_rate("10 gbit/s"), 1'250'000'000U);
    const std::pair<const char*, const char*> refused[] = {
        {"25Gb/s", "write GB/s for bytes per second, or Gbit/s for bits per second"},
        {"10gb/s", "write GB/s for bytes per second, or Gbit/s for bits per second"},
        {"10 Gib/s", "write GiB/s for bytes per second, or Gibit/s for bits per second"},
        {"5b/s", "write B/s for bytes per second, or bit/s for bits per second"},
        {"1Mb", "write MB/s for bytes per second, or Mbit/s for bits per second"},
        {"3kb/s", "write kB/s for bytes per second, or kbit/s for bits per second"},
        {"25G/s", "does not name its unit: write GB/s (powers of 1000) or GiB/s (powers of 1024)"},
        {"10Gbps", "has the unknown unit 'Gbps'; a speed is in B/s"},
    };
    for (const auto& [text, message] : refused) {
        try {
            parse_rate(text);
            ADD_FAILURE() << text << " is read";
        } catch (const QuantityError& error) {
            EXPECT_EQ(std::string(error.what()).find(std::string("'") + text + "' "), 0U) << error.what();
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
        }
    }
    EXPECT_THROW(parse_rate("10Gbps"), QuantityError);
    EXPECT_THROW(parse_rate("7bit/s"), QuantityError);
    EXPECT_THROW(parse_rate("bit/s"), QuantityError);
    EXPECT_THROW(parse_rate("0"), QuantityError);
    EXPECT_THROW(parse_rate("/s"), QuantityError);
    EXPECT_THROW(parse_rate("5%/s"), QuantityError);
}

TEST(Quantity, WritesBytes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(22'720'000), "21.7 MiB");
    EXPECT_EQ(format_bytes(416 * mib), "416 MiB");
    EXPECT_EQ(format_bytes(1002 * mib), "1002 MiB");
    EXPECT_EQ(format_bytes(1024 * mib - 1), "1.00 GiB");
    EXPECT_EQ(format_bytes(largest), "16.0 EiB");
}

TEST(Quantity, WritesRatesAndTimes) {
    EXPECT_EQ(format_rate(25'300'000'000.0), "25.3 GB/s");
    EXPECT_EQ(format_rate(999'999.9), "1.00 MB/s");
    EXPECT_EQ(format_rate(-1), "-");
    EXPECT_EQ(format_rate(std::nan("")), "-");
    EXPECT_EQ(format_duration(0), "0 ns");
    EXPECT_EQ(format_duration(640), "640 ns");
    EXPECT_EQ(format_duration(12'340), "12.3 us");
    EXPECT_EQ(format_duration(4'560'000), "4.56 ms");
    EXPECT_EQ(format_duration(1'234'000'000), "1.23 s");
    EXPECT_EQ(format_duration(59.4e9), "59.4 s");
    EXPECT_EQ(format_duration(125e9), "2 min 05 s");
    EXPECT_EQ(format_duration(11'220e9), "3 h 07 min");
    EXPECT_EQ(format_duration(-1), "-");
    EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "-");
}

}  // namespace

}  // namespace stagehand::cli::model::test
