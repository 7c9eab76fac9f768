#include "contents_stamp.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace stagehand::test {
namespace {

// A word is 12 bits of the block (four of them its runtime), 32 of the version and 20 of the place, mixed so that all
// its bytes vary. The mixing can be undone.
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;

constexpr uint64_t inverse(uint64_t odd) {
    uint64_t result = odd;
    for (int k = 0; k < 6; k++) result *= 2 - odd * result;
    return result;
}
constexpr uint64_t kInverse = inverse(kOdd);
static_assert(kOdd * kInverse == 1);

uint64_t mix(uint64_t word) {
    word *= kOdd;
    word ^= word >> 32;
    return word * kOdd;
}
uint64_t unmix(uint64_t word) {
    word *= kInverse;
    word ^= word >> 32;
    return word * kInverse;
}

uint64_t word_of(uint32_t block, uint32_t version, uint64_t place) {
    return mix(uint64_t(block & 0xfff) << 52 | uint64_t(version) << 20 | (place & 0xfffff));
}

std::string name_of(uint64_t word) {
    const uint64_t plain = unmix(word);
    const uint32_t version = static_cast<uint32_t>(plain >> 20);
    char text[128];
    const char* const mark = version & kRetired   ? " (written after it was unregistered)"
                             : version & kScratch ? " (written within an update)"
                                                  : "";
    // Other bytes than a stamp's give numbers beyond any that there are.
    if ((plain >> 52) < 512 && (version & ~(kRetired | kScratch)) < 1u << 26)
        std::snprintf(text, sizeof text, "block %u of runtime %u, version %u%s",
                      static_cast<unsigned>(plain >> 52) & 255, static_cast<unsigned>(plain >> 60),
                      version & ~(kRetired | kScratch), mark);
    else
        std::snprintf(text, sizeof text, "no stamp (0x%016llx)", static_cast<unsigned long long>(word));
    return text;
}

}  // namespace

Version stamp(uint32_t block, uint32_t version, uint64_t bytes) {
    auto result = std::make_shared<Stamp>();
    result->block = block;
    result->version = version;
    result->bytes.resize(bytes);
    for (uint64_t i = 0; i < bytes; i += 8) {
        const uint64_t word = word_of(block, version, i / 8);
        std::memcpy(result->bytes.data() + i, &word, std::min<uint64_t>(8, bytes - i));
    }
    return result;
}

std::string differences(const uint8_t* at, const Stamp& wanted) {
    const uint64_t bytes = wanted.bytes.size();
    if (std::memcmp(at, wanted.bytes.data(), bytes) == 0) return {};
    // Runs of words with the same stamp. The bytes are copied, because the original may go on changing.
    std::vector<uint8_t> seen(at, at + bytes);
    std::string text;
    uint64_t wrong = 0, begin = 0;
    std::string run;
    int runs = 0;
    const auto end_run = [&](uint64_t end) {
        if (!run.empty() && ++runs <= 8)
            text += "\n    bytes " + std::to_string(begin) + " to " + std::to_string(end) + ": " + run;
    };
    for (uint64_t i = 0; i < bytes; i += 8) {
        const uint64_t count = std::min<uint64_t>(8, bytes - i);
        std::string name;
        if (std::memcmp(seen.data() + i, wanted.bytes.data() + i, count) != 0) {
            uint64_t word = 0;
            std::memcpy(&word, seen.data() + i, count);
            name = count == 8 ? name_of(word) : run.empty() ? "the rest" : run;
            wrong += count;
        }
        if (name == run) continue;
        end_run(i);
        run = name;
        begin = i;
    }
    end_run(bytes);
    return std::to_string(wrong) + " of " + std::to_string(bytes) + " bytes are not of block " +
           std::to_string(wanted.block & 255) + ", version " + std::to_string(wanted.version & ~(kRetired | kScratch)) +
           text + (runs > 8 ? "\n    and " + std::to_string(runs - 8) + " runs more" : "");
}

}  // namespace stagehand::test
