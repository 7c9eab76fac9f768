// Figures as people read them, beyond those of model/quantity.h.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::cli {

// "14.2 ms"; less than a microsecond is nothing.
std::string time_text(double ms);

// "25.0 %" of `whole`; "-" when there is no whole.
std::string share_text(double part, double whole);

// "1.07 ×"; "-" when there is nothing to compare with.
std::string ratio_text(double value, double base);

// 1234567 as "1,234,567".
std::string count_text(std::uint64_t count);

// "1 block", "14 blocks".
std::string counted(std::uint64_t count, const char* singular);

}  // namespace stagehand::cli
