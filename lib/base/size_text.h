// Turns sizes into readable text for messages and the log.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand {

// "300 bytes", "160 KiB", "1.46 GiB": three significant digits and powers of 1024. Sizes below 10,000 bytes are given
// in bytes. For texts that only people read.
std::string size_text(uint64_t bytes);

// "300 bytes", "160 KiB (163840 bytes)". For sizes that a user may type again or compare to the byte.
std::string exact_size_text(uint64_t bytes);

}  // namespace stagehand
