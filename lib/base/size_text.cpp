#include "base/size_text.h"

#include <iterator>

#include "base/plain_format.h"

namespace stagehand {
namespace {

constexpr uint64_t kReadable = 10'000;  // fewer bytes need no other unit

}  // namespace

std::string size_text(uint64_t bytes) {
    if (bytes < kReadable) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
    static const char* const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes) / 1024;
    size_t unit = 0;
    // A value that would be rounded to 1024 is written in the next unit.
    for (; value >= 1023.5 && unit + 1 < std::size(names); unit++) value /= 1024;
    char text[32];
    plain_format(text, sizeof text, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, names[unit]);
    return text;
}

std::string exact_size_text(uint64_t bytes) {
    return bytes < kReadable ? size_text(bytes) : size_text(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace stagehand
