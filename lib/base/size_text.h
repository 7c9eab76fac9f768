// Sizes in messages and in the log, as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand {

// "300 bytes", "160 KiB", "1.46 GiB": three significant digits, powers of 1024; up to four digits of bytes as they are. For what is told.
std::string size_text(uint64_t bytes);

// "300 bytes", "160 KiB (163840 bytes)": also what can be typed, and compared to the byte.
std::string exact_size_text(uint64_t bytes);

}  // namespace stagehand
