// Figures as text for people, in addition to those of model/quantity.h.
#pragma once

#include <cstdint>
#include <string>

namespace stagehand::cli {

// "14.2 ms"; "0 ms" for less than a microsecond.
std::string time_text(double ms);

// "25.0 %" of `whole`; "-" if `whole` is 0.
std::string share_text(double part, double whole);

// "1.070 ×"; "-" if `base` is 0.
std::string ratio_text(double value, double base);

// Whether `value` is below `base` by so much that ratio_text() shows a ratio below one.
bool is_below(double value, double base);

// 1234567 as "1,234,567".
std::string count_text(std::uint64_t count);

// "1 block", "14 blocks".
std::string counted(std::uint64_t count, const char* singular);

}  // namespace stagehand::cli
